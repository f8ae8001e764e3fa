package untorn

// #include "shim.h"
import "C"

import (
	"io/fs"
	"strconv"
	"syscall"
	"unsafe"
)

// Code is the reason of a failure, as untorn.h numbers it: a negative errno, or one of the codes below. A code is an
// error, for [errors.Is].
type Code int

// The codes that no errno expresses. [Error.Errno] says which errno is next to each.
const (
	// ErrInternal is an internal error in untorn. Please report it.
	ErrInternal Code = C.UNTORN_EINTERNAL
	// ErrPoisoned means that an earlier flush failed or that a page of the file was lost. Close the file and open it
	// again, to return to the last commit.
	ErrPoisoned Code = C.UNTORN_EPOISONED
	// ErrSidecarMissing means that the sidecar that holds committed bytes is missing.
	ErrSidecarMissing Code = C.UNTORN_ESIDECAR_MISSING
	// ErrSidecarMismatch means that the sidecar beside the file belongs to another file.
	ErrSidecarMismatch Code = C.UNTORN_ESIDECAR_MISMATCH
	// ErrMixedUse means that another program changed the file while its sidecar held committed bytes.
	ErrMixedUse Code = C.UNTORN_EMIXED_USE
	// ErrTxOpen means that transactions of the handle are open.
	ErrTxOpen Code = C.UNTORN_ETXOPEN
	// ErrSnapshotEnded means that the snapshot has ended: there was no space to keep a page for it, or the process
	// that has the file open closed it.
	ErrSnapshotEnded Code = C.UNTORN_ESNAPSHOT
)

// Error returns a short text.
func (c Code) Error() string {
	return C.GoString(C.untorn_strerror(C.int(c)))
}

// errno is the nearest one, as the C library has it for its functions that set errno.
func (c Code) errno() syscall.Errno {
	switch c {
	case ErrPoisoned, ErrInternal:
		return syscall.EIO
	case ErrSidecarMissing, ErrSidecarMismatch, ErrMixedUse, ErrSnapshotEnded:
		return syscall.ESTALE
	case ErrTxOpen:
		return syscall.EBUSY
	}
	return syscall.Errno(-c)
}

// Error says why a call failed.
type Error struct {
	// Op is the call: "open", "read", "commit" and so on.
	Op string
	// Path is the file.
	Path string
	// Code is the reason.
	Code Code
	// Text is a sentence that names the file and says what to do.
	Text string
}

func (e *Error) Error() string {
	text := e.Text
	if text == "" {
		text = e.Path + ": " + e.Code.Error()
	}
	return "untorn: " + e.Op + ": " + text
}

// Errno returns the errno that is nearest to the code: EIO for [ErrPoisoned], for instance.
func (e *Error) Errno() syscall.Errno {
	return e.Code.errno()
}

// Is reports whether target is the code of the error.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}

// Unwrap returns [Error.Errno], so that [errors.Is] finds syscall.ENOENT, fs.ErrNotExist and the like.
func (e *Error) Unwrap() error {
	return e.Errno()
}

// failure is the outcome of a call as an error, or nil.
func failure(op, path string, outcome C.outcome) error {
	if outcome.code == 0 {
		return nil
	}
	err := &Error{Op: op, Path: path, Code: Code(outcome.code)}
	if outcome.text != nil {
		err.Text = C.GoString(outcome.text)
		C.free(unsafe.Pointer(outcome.text))
	}
	return err
}

func invalid(op, path, why string) error {
	return &Error{Op: op, Path: path, Code: C.UNTORN_EINVAL, Text: path + ": " + why}
}

func closed(op, path string) error {
	return &fs.PathError{Op: "untorn: " + op, Path: path, Err: fs.ErrClosed}
}

// beyond is the error for a range that is not within the file.
func beyond(op, path string, n int, off, length int64) error {
	return &Error{Op: op, Path: path, Code: C.UNTORN_EFAULT, Text: path + ": " + strconv.Itoa(n) +
		" bytes at offset " + strconv.FormatInt(off, 10) + " do not lie within the file's " +
		strconv.FormatInt(length, 10) + " bytes; resize the file first"}
}
