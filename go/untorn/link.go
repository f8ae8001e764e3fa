//go:build !pkgconfig

package untorn

// #cgo LDFLAGS: -luntorn
import "C"
