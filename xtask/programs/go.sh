# A Go program, which makes its system calls itself, with a bbolt store: one page tree in a file that it maps.
export GOPATH="${GOPATH:-$HOME/go}" GOCACHE="${GOCACHE:-$HOME/.cache/go-build}" GOFLAGS=-mod=mod GOTOOLCHAIN=local
mkdir -p "$ASIDE/store" && cp "$PROGRAMS/store.go" "$ASIDE/store/main.go"
(cd "$ASIDE/store" && go mod init store && go get go.etcd.io/bbolt@v1.3.10 && go build -o ../bolt .) >"$ASIDE/go" 2>&1
"$ASIDE/bolt" fill store.db 300
"$ASIDE/bolt" list store.db
"$ASIDE/bolt" fill store.db 600
"$ASIDE/bolt" list store.db
"$ASIDE/bolt" delete store.db 100
"$ASIDE/bolt" compact store.db compacted.db
"$ASIDE/bolt" list compacted.db
"$ASIDE/bolt" check compacted.db
