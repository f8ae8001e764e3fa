package untorn_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"untorn"
)

func TestErrorsAreThoseOfGo(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "data")
	_, err := untorn.Open(path, nil)
	if !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	var failure *untorn.Error
	if !errors.As(err, &failure) {
		t.Fatal(err)
	}
	if failure.Code != untorn.Code(-int(syscall.ENOENT)) || failure.Path != path || failure.Op != "open" {
		t.Errorf("%+v", failure)
	}
	contains(t, err.Error(), "untorn: open: ", path)

	_, err = untorn.OpenMap(path, 0, nil)
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err = untorn.OpenSnapshot(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if _, err = untorn.Open(dir, nil); !errors.Is(err, syscall.EISDIR) {
		t.Error(err)
	}
	if _, err = untorn.Open("a\x00b", nil); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if _, err = untorn.Open(path, &untorn.Options{Create: true, Size: -1}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if _, err = untorn.Open(path, &untorn.Options{Create: true, SnapshotMemory: -1}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if _, err = untorn.Open(path, &untorn.Options{Create: true, Engine: 99}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if _, err = untorn.OpenMap(path, 1, &untorn.Options{Size: 1}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if _, err = os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a call that failed made a file")
	}

	file, err := untorn.Open(path, &untorn.Options{Create: true, Size: 100, MaxLen: 1 << 20})
	check(t, err)
	if _, err = untorn.Open(path, &untorn.Options{Create: true, Excl: true}); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	if _, err = untorn.OpenMap(path, 0, nil); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	if n, err := file.WriteAt(make([]byte, 8), 93); n != 0 || !errors.Is(err, syscall.EFAULT) {
		t.Error(n, err)
	}
	if n, err := file.WriteAt(make([]byte, 8), -1); n != 0 || !errors.Is(err, syscall.EINVAL) {
		t.Error(n, err)
	}
	check(t, file.Update(func(tx *untorn.Tx) error {
		for _, off := range []int64{93, 101, 1 << 62} {
			n, err := tx.WriteAt(make([]byte, 8), off)
			if n != 0 || !errors.Is(err, syscall.EFAULT) {
				t.Error(n, err)
			}
			contains(t, err.Error(), path, "8 bytes at offset", "100 bytes")
		}
		if n, err := tx.WriteAt(make([]byte, 8), -1); n != 0 || !errors.Is(err, syscall.EINVAL) {
			t.Error(n, err)
		}
		return setWord(tx, 92, 1)
	}))
	if err = file.Resize(1 << 21); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	snapshot, err := file.Snapshot()
	check(t, err)
	check(t, snapshot.Close())
	check(t, file.Close())

	after := func(tx *untorn.Tx) error { t.Error("an update of a closed file"); return nil }
	view := func(*untorn.Snapshot) error { t.Error("a view of a closed file"); return nil }
	_, reads := file.ReadAt(make([]byte, 1), 0)
	_, writes := file.WriteAt(make([]byte, 1), 0)
	_, takes := file.Snapshot()
	_, _, asks := file.LastCommit()
	_, held := snapshot.ReadAt(make([]byte, 1), 0)
	all := []error{reads, writes, takes, asks, held, file.Commit(), file.Resize(1), file.Update(after), file.View(view),
		file.Close(), snapshot.Close()}
	for at, err := range all {
		if !errors.Is(err, fs.ErrClosed) {
			t.Errorf("call %d of a closed file: %v", at, err)
		}
	}
	if file.Len() != 0 || snapshot.Len() != 0 || snapshot.Commit() != 0 {
		t.Error("a closed file has a length")
	}

	reader, err := untorn.Open(path, &untorn.Options{ReadOnly: true})
	check(t, err)
	defer reader.Close()
	if err = reader.Update(func(tx *untorn.Tx) error { return setWord(tx, 0, 1) }); !errors.Is(err, syscall.EROFS) {
		t.Error(err)
	}
	if value, err := word(reader, 92); value != 1 || err != nil {
		t.Error(value, err)
	}
}

func TestCodesHaveTextsAndErrnos(t *testing.T) {
	codes := map[untorn.Code]syscall.Errno{
		untorn.ErrInternal:               syscall.EIO,
		untorn.ErrPoisoned:               syscall.EIO,
		untorn.ErrSidecarMissing:         syscall.ESTALE,
		untorn.ErrSidecarMismatch:        syscall.ESTALE,
		untorn.ErrMixedUse:               syscall.ESTALE,
		untorn.ErrSnapshotEnded:          syscall.ESTALE,
		untorn.ErrTxOpen:                 syscall.EBUSY,
		untorn.Code(-int(syscall.EIO)):   syscall.EIO,
		untorn.Code(-int(syscall.EINTR)): syscall.EINTR,
	}
	for code, errno := range codes {
		err := error(&untorn.Error{Op: "commit", Path: "/a/file", Code: code})
		if !errors.Is(err, code) || !errors.Is(err, errno) || errors.Is(err, untorn.Code(-9)) {
			t.Errorf("%d: %v", code, err)
		}
		contains(t, err.Error(), "commit", "/a/file", code.Error())
		if code.Error() == untorn.Code(77).Error() {
			t.Errorf("%d has no text", code)
		}
	}
	contains(t, untorn.Version(), ".")
}

// A file whose sidecar with committed bytes is gone.
func TestAMissingSidecarHasItsCode(t *testing.T) {
	file := created(t, page, untorn.Options{KeepSidecar: true, Durability: untorn.PerCommit})
	check(t, file.Update(func(tx *untorn.Tx) error { return setWord(tx, 0, 1) }))
	check(t, file.Close())
	entries, err := os.ReadDir(filepath.Dir(file.Path()))
	check(t, err)
	for _, entry := range entries {
		if entry.Name() != "data" {
			check(t, os.RemoveAll(filepath.Join(filepath.Dir(file.Path()), entry.Name())))
		}
	}
	_, err = untorn.Open(file.Path(), nil)
	if !errors.Is(err, untorn.ErrSidecarMissing) || !errors.Is(err, syscall.ESTALE) {
		t.Error(err)
	}
}
