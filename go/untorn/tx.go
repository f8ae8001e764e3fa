package untorn

// #include "shim.h"
import "C"

import (
	"io"
)

// pageShift divides a file into the pieces by which a transaction finds its own writes.
const pageShift = 12

// Tx is a transaction of [File.Update]: writes that commit together or not at all. One goroutine at a time uses it,
// and not after the function has returned.
//
// The writes wait in memory until the function returns. Reads of the transaction see them; nothing else does.
type Tx struct {
	file   *File
	length int64
	writes []write
	// The writes that touch a page, oldest first.
	pages map[int64][]int
	ended bool
}

type write struct {
	off   int64
	bytes []byte
}

var (
	_ io.ReaderAt = (*Tx)(nil)
	_ io.WriterAt = (*Tx)(nil)
)

// Update calls fn with a transaction. If fn returns nil, its writes commit as one and are durable when Update returns,
// together with what [File.WriteAt] wrote before. If fn returns an error or panics, no write of it happens.
//
// Updates take turns, so what fn reads stays until it has committed; writes by [File.WriteAt] and [File.Resize] wait,
// too. Therefore fn must not call these, Update or Close for the same file. The turn ends before the flush, and
// goroutines that update at the same time share the flush.
//
// Errors: that of fn, unchanged; those of [File.WriteAt] and [File.Commit].
func (f *File) Update(fn func(tx *Tx) error) error {
	tx := &Tx{file: f}
	written, err := f.apply(tx, fn)
	if err != nil {
		return err
	}
	defer f.open.RUnlock()
	// Also for a function that wrote nothing: what it has read may not be durable yet.
	return failure("commit", f.path, C.file_sync(written))
}

// apply calls fn and applies its writes. If it returns no error, it leaves the handle held, so that no close comes
// between the writes and their flush.
func (f *File) apply(tx *Tx, fn func(tx *Tx) error) (handle *C.untorn_t, err error) {
	f.turn.Lock()
	defer f.turn.Unlock()
	// A panic of fn passes here, too, and so does runtime.Goexit.
	defer func() { tx.ended, tx.writes, tx.pages = true, nil, nil }()
	err = f.use("update", func(handle *C.untorn_t) error {
		tx.length = int64(C.untorn_len(handle))
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := fn(tx); err != nil {
		return nil, err
	}
	f.open.RLock()
	if f.handle == nil {
		f.open.RUnlock()
		return nil, closed("update", f.path)
	}
	if err := tx.write(f.handle); err != nil {
		f.open.RUnlock()
		return nil, err
	}
	return f.handle, nil
}

// write gives the writes to the library, as one.
func (tx *Tx) write(handle *C.untorn_t) error {
	if len(tx.writes) == 0 {
		return nil
	}
	path := tx.file.path
	begun := C.tx_begin(handle)
	if begun.handle == nil {
		return failure("update", path, begun.outcome)
	}
	ctx := (*C.untorn_tx)(begun.handle)
	for _, w := range tx.writes {
		outcome := C.tx_write(ctx, C.uint64_t(w.off), firstOf(w.bytes), C.size_t(len(w.bytes)))
		if err := failure("update", path, outcome); err != nil {
			C.untorn_tx_abort(ctx)
			return err
		}
	}
	return failure("update", path, C.tx_commit(ctx))
}

// Len returns the length of the file in bytes.
func (tx *Tx) Len() int64 {
	return tx.length
}

// ReadAt fills p from the offset: the file's bytes, with the writes of this transaction. At the end of the file it
// returns fewer bytes and io.EOF.
//
// Errors: those of [File.ReadAt]; fs.ErrClosed after the function has returned.
func (tx *Tx) ReadAt(p []byte, off int64) (int, error) {
	if tx.ended {
		return 0, closed("read of a transaction that has ended", tx.file.path)
	}
	n, err := tx.file.ReadAt(p, off)
	if n == 0 {
		return n, err
	}
	p = p[:n]
	end := off + int64(n)
	for page := off >> pageShift; page<<pageShift < end; page++ {
		from, to := max(page<<pageShift, off), min((page+1)<<pageShift, end)
		for _, index := range tx.pages[page] {
			w := tx.writes[index]
			first, last := max(from, w.off), min(to, w.off+int64(len(w.bytes)))
			if first < last {
				copy(p[first-off:last-off], w.bytes[first-w.off:last-w.off])
			}
		}
	}
	return n, err
}

// WriteAt adds a write. It copies p.
//
// Errors: syscall.EFAULT unless all bytes are within the file; fs.ErrClosed after the function has returned. The
// transaction is unchanged then, and fn decides whether it goes on.
func (tx *Tx) WriteAt(p []byte, off int64) (int, error) {
	if tx.ended {
		return 0, closed("write of a transaction that has ended", tx.file.path)
	}
	if off < 0 {
		return 0, invalid("write", tx.file.path, "the offset is negative")
	}
	if off > tx.length || int64(len(p)) > tx.length-off {
		return 0, beyond("write", tx.file.path, len(p), off, tx.length)
	}
	if len(p) == 0 {
		return 0, nil
	}
	first, last := off>>pageShift, (off+int64(len(p))-1)>>pageShift
	// A counter that a loop writes again and again stays one write.
	if on := tx.pages[first]; first == last && len(on) > 0 {
		if w := tx.writes[on[len(on)-1]]; w.off == off && len(w.bytes) == len(p) {
			return copy(w.bytes, p), nil
		}
	}
	if tx.pages == nil {
		tx.pages = make(map[int64][]int)
	}
	tx.writes = append(tx.writes, write{off, append([]byte(nil), p...)})
	for page := first; page <= last; page++ {
		tx.pages[page] = append(tx.pages[page], len(tx.writes)-1)
	}
	return len(p), nil
}
