module untorn

go 1.21
