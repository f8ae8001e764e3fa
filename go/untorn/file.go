package untorn

// #include "shim.h"
import "C"

import (
	"io"
	"sync"
	"time"
)

// File is an open file. Any number of goroutines may use one. Reads and writes are atomic with respect to each other,
// over any number of pages.
//
// The file stays open until [File.Close]; nothing closes a File that the program forgets. A process that ends without
// a close leaves the last commit.
type File struct {
	path string

	// Lock order: turn, then open.

	// Held alone by what reads and then writes, and together by single writes.
	turn sync.RWMutex
	// Held together by each call that uses the handle, and alone by the close.
	open   sync.RWMutex
	handle *C.untorn_t
}

var (
	_ io.ReaderAt = (*File)(nil)
	_ io.WriterAt = (*File)(nil)
	_ io.Closer   = (*File)(nil)
)

// Open opens the file at path. Unless it is opened read-only, the call recovers the file after a crash, and creates a
// sidecar beside a file that has none. A nil opts has all defaults. Opening one file twice in a process gives two
// handles to one state.
//
// Errors: fs.ErrNotExist, fs.ErrExist, fs.ErrPermission, syscall.EISDIR, syscall.EBUSY (the file is open elsewhere, or
// here with other options), syscall.EINVAL (an option), syscall.ENOSPC, [ErrSidecarMissing], [ErrSidecarMismatch],
// [ErrMixedUse], and others of the system.
func Open(path string, opts *Options) (*File, error) {
	cpath, options, err := checked(path, opts)
	if err != nil {
		return nil, err
	}
	defer free(cpath)
	opened := C.open_file(cpath, options)
	if opened.handle == nil {
		return nil, failure("open", path, opened.outcome)
	}
	return &File{path: path, handle: (*C.untorn_t)(opened.handle)}, nil
}

// Path returns the path that the file was opened with.
func (f *File) Path() string {
	return f.path
}

// use calls body with the handle, which stays open meanwhile. No code of the caller runs in body.
func (f *File) use(op string, body func(handle *C.untorn_t) error) error {
	f.open.RLock()
	defer f.open.RUnlock()
	if f.handle == nil {
		return closed(op, f.path)
	}
	return body(f.handle)
}

// ReadAt fills p from the offset, atomically: it sees a write of another goroutine whole or not at all. At the end of
// the file it returns fewer bytes and io.EOF.
//
// Errors: fs.ErrClosed, syscall.EIO, [ErrPoisoned].
func (f *File) ReadAt(p []byte, off int64) (n int, err error) {
	err = f.use("read", func(handle *C.untorn_t) error {
		length := func() int64 { return int64(C.untorn_len(handle)) }
		n, err = readAt(f.path, p, off, length, func(p []byte) C.outcome {
			return C.file_read(handle, C.uint64_t(off), firstOf(p), C.size_t(len(p)))
		})
		return err
	})
	return n, err
}

// readAt turns reads of the C library, which are never short, into those of io.ReaderAt.
func readAt(path string, p []byte, off int64, length func() int64, read func(p []byte) C.outcome) (int, error) {
	if off < 0 {
		return 0, invalid("read", path, "the offset is negative")
	}
	for {
		before := length()
		n := min(int64(len(p)), max(before-off, 0))
		if n > 0 {
			err := failure("read", path, read(p[:n]))
			if err != nil && length() < before {
				continue // it was cut off in between
			}
			if err != nil {
				return 0, err
			}
		}
		if n < int64(len(p)) {
			return int(n), io.EOF
		}
		return int(n), nil
	}
}

// WriteAt writes p at the offset, atomically. With [PerWrite] it is durable when it returns; with [PerCommit] it joins
// the open epoch, and [File.Commit] or the next [File.Update] makes it durable. The file does not grow. It waits for
// an Update that runs, so a function under Update calls [Tx.WriteAt] instead.
//
// Errors: syscall.EFAULT unless all bytes are within the file, fs.ErrClosed, syscall.EROFS, syscall.ENOSPC,
// syscall.EIO, [ErrPoisoned]. After an error the file holds none of the bytes; after a failed flush, opening it again
// tells whether it holds all of them or none.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, invalid("write", f.path, "the offset is negative")
	}
	f.turn.RLock()
	defer f.turn.RUnlock()
	err := f.use("write", func(handle *C.untorn_t) error {
		return failure("write", f.path,
			C.file_write(handle, C.uint64_t(off), firstOf(p), C.size_t(len(p))))
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Commit makes everything durable that was written before. Goroutines that commit at the same time share the flush.
// With [PerWrite] there is nothing left to do.
//
// Errors: fs.ErrClosed, syscall.EIO and others of a flush; the handle is then poisoned.
func (f *File) Commit() error {
	return f.use("commit", func(handle *C.untorn_t) error {
		return failure("commit", f.path, C.file_sync(handle))
	})
}

// Len returns the length in bytes, and 0 for a closed file.
func (f *File) Len() (n int64) {
	_ = f.use("len", func(handle *C.untorn_t) error {
		n = int64(C.untorn_len(handle))
		return nil
	})
	return n
}

// Resize changes the length atomically, durably when it returns, and commits what was written before. New bytes are
// zeros. With [EngineHybridLog] and [PerCommit] the new length joins the open epoch, and [File.Commit] commits it.
//
// Errors: syscall.EINVAL above [Options.MaxLen], fs.ErrClosed, syscall.EROFS, syscall.ENOSPC, syscall.EIO,
// [ErrPoisoned].
func (f *File) Resize(n int64) error {
	if n < 0 {
		return invalid("resize", f.path, "the length is negative")
	}
	f.turn.Lock()
	defer f.turn.Unlock()
	return f.use("resize", func(handle *C.untorn_t) error {
		return failure("resize", f.path, C.file_resize(handle, C.uint64_t(n)))
	})
}

// LastCommit returns the number of the last commit, which grows with each, and its time. The time is zero if it is not
// known.
func (f *File) LastCommit() (number uint64, at time.Time, err error) {
	err = f.use("last commit", func(handle *C.untorn_t) error {
		last := C.file_last_commit(handle)
		number = uint64(last.number)
		if last.time_ns != 0 {
			at = time.Unix(0, int64(last.time_ns))
		}
		return failure("last commit", f.path, last.outcome)
	})
	return number, at, err
}

// Snapshot holds the last commit while writers go on; writes since then are not in it. Close it soon: the first change
// of each page after it keeps a copy of that page. The file stays open until its last snapshot is closed, too.
//
// Errors: fs.ErrClosed, syscall.EIO.
func (f *File) Snapshot() (snapshot *Snapshot, err error) {
	err = f.use("snapshot", func(handle *C.untorn_t) error {
		snapshot, err = taken(f.path, C.snapshot_of_file(handle))
		return err
	})
	return snapshot, err
}

// View calls fn with a snapshot of the last commit, which ends when fn returns. Views and updates do not wait for each
// other. View returns the error of fn.
func (f *File) View(fn func(s *Snapshot) error) error {
	snapshot, err := f.Snapshot()
	if err != nil {
		return err
	}
	defer snapshot.Close()
	return fn(snapshot)
}

// Close commits what was written, and closes the file. If this is the process's last handle to it, and no snapshot is
// held, the file is then a plain one, which any program may read. Close waits for calls that run, so a function under
// Update cannot call it.
//
// Errors: fs.ErrClosed if it was closed before; syscall.EIO and others of a flush, and the next open returns to the
// last commit. The file is closed then, too.
func (f *File) Close() error {
	f.turn.Lock()
	defer f.turn.Unlock()
	f.open.Lock()
	defer f.open.Unlock()
	if f.handle == nil {
		return closed("close", f.path)
	}
	handle := f.handle
	f.handle = nil
	return failure("close", f.path, C.file_close(handle))
}
