//go:build pkgconfig

package untorn

// #cgo pkg-config: untorn
import "C"
