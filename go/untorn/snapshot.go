package untorn

// #include "shim.h"
import "C"

import (
	"io"
	"runtime"
	"sync"
)

// Snapshot is a file as it was at one commit, while writers go on. Any number of goroutines may use one.
//
// It implements io.ReaderAt; io.NewSectionReader(s, 0, s.Len()) is a reader of the whole.
type Snapshot struct {
	path string

	// Held together by each call that uses the handle, and alone by the close.
	open   sync.RWMutex
	handle *C.untorn_snapshot_t
}

var (
	_ io.ReaderAt = (*Snapshot)(nil)
	_ io.Closer   = (*Snapshot)(nil)
)

// OpenSnapshot takes a snapshot of a file that this process, another one, or none has open. One in another process
// ends when that process closes the file or ends.
//
// Errors: syscall.EBUSY if the process that has the file open serves no snapshots; those of [Open].
func OpenSnapshot(path string) (*Snapshot, error) {
	cpath, err := cPath("snapshot", path)
	if err != nil {
		return nil, err
	}
	defer free(cpath)
	return taken(path, C.open_snapshot(cpath))
}

func taken(path string, opened C.opened) (*Snapshot, error) {
	if opened.handle == nil {
		return nil, failure("snapshot", path, opened.outcome)
	}
	s := &Snapshot{path: path, handle: (*C.untorn_snapshot_t)(opened.handle)}
	// The last resort: a snapshot that the program forgets would cost its writers copies for ever.
	runtime.SetFinalizer(s, func(s *Snapshot) { _ = s.Close() })
	return s, nil
}

// ReadAt fills p from the offset. At the end of the snapshot it returns fewer bytes and io.EOF.
//
// Errors: [ErrSnapshotEnded], fs.ErrClosed, syscall.EIO.
func (s *Snapshot) ReadAt(p []byte, off int64) (int, error) {
	defer runtime.KeepAlive(s)
	s.open.RLock()
	defer s.open.RUnlock()
	if s.handle == nil {
		return 0, closed("read", s.path)
	}
	length := func() int64 { return int64(C.untorn_snapshot_len(s.handle)) }
	return readAt(s.path, p, off, length, func(p []byte) C.outcome {
		return C.snapshot_read(s.handle, C.uint64_t(off), firstOf(p), C.size_t(len(p)))
	})
}

// Len returns the length in bytes, and 0 for a closed snapshot.
func (s *Snapshot) Len() int64 {
	defer runtime.KeepAlive(s)
	s.open.RLock()
	defer s.open.RUnlock()
	return int64(C.untorn_snapshot_len(s.handle))
}

// Commit returns the number of the commit, and 0 for a closed snapshot.
func (s *Snapshot) Commit() uint64 {
	defer runtime.KeepAlive(s)
	s.open.RLock()
	defer s.open.RUnlock()
	return uint64(C.untorn_snapshot_commit(s.handle))
}

// Close gives the snapshot up. A second call returns fs.ErrClosed.
func (s *Snapshot) Close() error {
	s.open.Lock()
	defer s.open.Unlock()
	if s.handle == nil {
		return closed("close", s.path)
	}
	handle := s.handle
	s.handle = nil
	runtime.SetFinalizer(s, nil)
	return failure("close", s.path, C.snapshot_close(handle))
}
