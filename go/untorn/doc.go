// Package untorn has files and memory that never tear: after a kill, a crash or a power cut a file holds exactly its
// last commit.
//
// A [File] has reads, writes and transactions, in the shape that users of bbolt know: [File.Update] commits what a
// function writes, or nothing of it, and [File.View] reads the file as it was at one commit. A [Map] is a file as
// memory, a []byte: [Map.Commit] makes all stores since the last commit durable together, and [Map.Rollback] takes
// them back.
//
// The package calls the C library libuntorn through cgo. It needs Linux, a C compiler, untorn.h and the library.
//
// # Errors
//
// Every error of the library is an [*Error]. It works with [errors.Is] and the values of the packages syscall and
// io/fs, such as [syscall.ENOSPC] or [fs.ErrNotExist], and with the codes of this package, such as [ErrPoisoned].
//
// # Signals
//
// The first open of a file installs the library's handler of SIGBUS over the one of Go. If another program truncates a
// file or its medium fails, the access gives an error with [syscall.EIO], and the program goes on. The library passes
// every other SIGBUS to Go, so [runtime/debug.SetPanicOnFault] works for mappings that are not the library's. Nothing
// in os/signal replaces the handler: Go never gives SIGBUS away. [Options.LostPageSignal] leaves the lost pages of a
// file to Go as well.
package untorn

// #include "shim.h"
import "C"

// Version returns the version of the library that the program runs with, as "0.1.0".
func Version() string {
	return C.GoString(C.untorn_version())
}
