package untorn

// #include "shim.h"
import "C"

import (
	"io"
	"sync"
	"unsafe"
)

// Map is a file as memory: the program loads and stores freely through [Map.Bytes], and then commits.
//
// Nothing closes a Map that the program forgets, since its bytes may still be in use. A process that ends without a
// close leaves the last commit.
//
// Methods of a Map may be called by any number of goroutines. For loads and stores the rules are:
//
//   - While [Map.Commit] runs, goroutines may load, but must not store: otherwise recovery may drop the commit. Beside
//     [Map.CommitBesideStores] they may store.
//   - While [Map.Rollback] or [Map.Resize] runs, goroutines must neither load nor store.
//   - After [Map.Close] no goroutine may use the bytes: the memory is gone, and an access is a fault.
//
// The race detector does not watch this memory, as it is not Go's.
type Map struct {
	path string

	// Held alone by what changes the length or ends the map, and together by the other calls.
	open   sync.RWMutex
	memory unsafe.Pointer
	length int
}

var _ io.Closer = (*Map)(nil)

// OpenMap opens the file at path as memory. If size is above 0 and the file does not exist, the call creates it with
// size zero bytes, and lets an empty file grow to that size; any other file keeps its own length. If size is 0, the
// file must exist. The call recovers the file after a crash. With [Options.ReadOnly] stores stay in this map, and
// calls that change the file fail.
//
// Errors: those of [Open]; syscall.EBUSY if the file is open as another map or as a [File]; syscall.EINVAL for an
// engine, a durability or a length of the options.
func OpenMap(path string, size int64, opts *Options) (*Map, error) {
	options := Options{}
	if opts != nil {
		options = *opts
	}
	if options.Size != 0 {
		return nil, invalid("open", path, "a map has its size as an argument; leave Options.Size at 0")
	}
	options.Size = size
	options.Create = options.Create || (size > 0 && !options.ReadOnly)
	cpath, coptions, err := checked(path, &options)
	if err != nil {
		return nil, err
	}
	defer free(cpath)
	opened := C.open_map(cpath, coptions)
	if opened.handle == nil {
		return nil, failure("open", path, opened.outcome)
	}
	return &Map{path: path, memory: opened.handle, length: int(opened.len)}, nil
}

// Path returns the path that the map was opened with.
func (m *Map) Path() string {
	return m.path
}

// Bytes returns the memory of the whole file. The library maps it: it is not Go memory, the garbage collector does not
// see it, and it must not hold Go pointers. It is valid until [Map.Close], and its address is the same until then; a
// length that [Map.Resize] or [Map.Rollback] changes is that of the next call of Bytes. A slice from before a shrink
// must not be used beyond the new length. A closed map gives nil.
func (m *Map) Bytes() []byte {
	m.open.RLock()
	defer m.open.RUnlock()
	if m.memory == nil {
		return nil
	}
	return unsafe.Slice((*byte)(m.memory), m.length)
}

// Len returns the length in bytes, and 0 for a closed map.
func (m *Map) Len() int64 {
	m.open.RLock()
	defer m.open.RUnlock()
	return int64(m.length)
}

func (m *Map) use(op string, call func(memory unsafe.Pointer) C.outcome) error {
	m.open.RLock()
	defer m.open.RUnlock()
	if m.memory == nil {
		return closed(op, m.path)
	}
	return failure(op, m.path, call(m.memory))
}

// change calls what may change the length, alone.
func (m *Map) change(op string, call func(memory unsafe.Pointer) C.outcome) error {
	m.open.Lock()
	defer m.open.Unlock()
	if m.memory == nil {
		return closed(op, m.path)
	}
	err := failure(op, m.path, call(m.memory))
	m.length = int(C.untorn_map_len(m.memory))
	return err
}

// Commit makes every store since the last commit, and the length, durable together. No goroutine may store meanwhile.
//
// Errors: syscall.EINVAL if the stores do not fit into the log ([Options.LogSize]) and syscall.ENOSPC: nothing is
// committed, and the call may be repeated. syscall.EROFS, fs.ErrClosed. syscall.EIO, [ErrPoisoned]: only opening the
// file again tells whether this commit is durable, all of it or nothing.
func (m *Map) Commit() error {
	return m.use("commit", func(memory unsafe.Pointer) C.outcome { return C.map_commit(memory) })
}

// CommitBesideStores commits while other goroutines store. Every store that ended before the call is in the commit. A
// store that runs meanwhile is in it whole, in part or not at all, and whole in the next one. Each page that was ever
// stored to stays in memory until a [Map.Commit] or [Map.Rollback].
//
// Errors: those of [Map.Commit].
func (m *Map) CommitBesideStores() error {
	return m.use("commit", func(memory unsafe.Pointer) C.outcome { return C.map_commit_beside_stores(memory) })
}

// Rollback discards every store since the last commit, and restores the length of that commit.
//
// Errors: syscall.EROFS, fs.ErrClosed; syscall.EIO, [ErrPoisoned]: some stores may be discarded then, and others not.
func (m *Map) Rollback() error {
	return m.change("rollback", func(memory unsafe.Pointer) C.outcome { return C.map_rollback(memory) })
}

// Resize changes the length; it commits or rolls back with the stores. New bytes are zeros, and the address stays.
//
// Errors: syscall.EINVAL above [Options.MaxLen], syscall.EROFS, syscall.ENOSPC, syscall.EIO, [ErrPoisoned],
// fs.ErrClosed. The length is unchanged then.
func (m *Map) Resize(n int64) error {
	if n < 0 {
		return invalid("resize", m.path, "the length is negative")
	}
	return m.change("resize", func(memory unsafe.Pointer) C.outcome { return C.map_resize(memory, C.uint64_t(n)) })
}

// Snapshot holds the last commit, as [File.Snapshot] does. Stores since then are not in it.
func (m *Map) Snapshot() (*Snapshot, error) {
	m.open.RLock()
	defer m.open.RUnlock()
	if m.memory == nil {
		return nil, closed("snapshot", m.path)
	}
	return taken(m.path, C.snapshot_of_map(m.memory))
}

// View calls fn with a snapshot of the last commit, which ends when fn returns. It returns the error of fn.
func (m *Map) View(fn func(s *Snapshot) error) error {
	snapshot, err := m.Snapshot()
	if err != nil {
		return err
	}
	defer snapshot.Close()
	return fn(snapshot)
}

// Close discards every store since the last commit and ends the map. It does not commit: only the program knows when
// its stores are complete. The file is a plain one then, unless [Options.KeepSidecar] is set or a snapshot is held.
//
// Errors: fs.ErrClosed if it was closed before; syscall.EIO and others of a flush, and the next open returns to the
// last commit. The map is closed then, too.
func (m *Map) Close() error {
	m.open.Lock()
	defer m.open.Unlock()
	if m.memory == nil {
		return closed("close", m.path)
	}
	memory := m.memory
	m.memory, m.length = nil, 0
	return failure("close", m.path, C.map_end(memory))
}
