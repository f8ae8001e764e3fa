package untorn_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"untorn"
)

func TestUpdateCommitsOrRollsBack(t *testing.T) {
	file := created(t, 3*page, untorn.Options{Durability: untorn.PerCommit})
	check(t, file.Update(func(tx *untorn.Tx) error {
		check(t, setWord(tx, page-4, 1))
		return setWord(tx, 2*page, 1)
	}))
	before, _, err := file.LastCommit()
	check(t, err)

	refused := errors.New("the program's own")
	var kept *untorn.Tx
	err = file.Update(func(tx *untorn.Tx) error {
		kept = tx
		check(t, setWord(tx, page-4, 2))
		if seen, err := word(tx, page-4); seen != 2 || err != nil {
			t.Errorf("the transaction reads %d, %v", seen, err)
		}
		if seen, err := word(file, page-4); seen != 1 || err != nil {
			t.Errorf("a reader saw %d of an open transaction, %v", seen, err)
		}
		return refused
	})
	if err != refused {
		t.Errorf("Update returned %v", err)
	}
	func() {
		defer func() {
			if recover() != "panic" {
				t.Error("Update took the panic")
			}
		}()
		_ = file.Update(func(tx *untorn.Tx) error {
			check(t, setWord(tx, page-4, 3))
			panic("panic")
		})
	}()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = file.Update(func(tx *untorn.Tx) error {
			_ = setWord(tx, page-4, 4)
			runtime.Goexit()
			return nil
		})
	}()
	<-ended
	if _, err := kept.WriteAt([]byte{1}, 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a write after the end: %v", err)
	}
	if _, err := kept.ReadAt([]byte{1}, 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a read after the end: %v", err)
	}

	if after, _, err := file.LastCommit(); after != before || err != nil {
		t.Errorf("what was rolled back is commit %d after %d, %v", after, before, err)
	}
	check(t, file.Close())
	content, err := os.ReadFile(file.Path())
	check(t, err)
	want := make([]byte, 3*page)
	want[page-4], want[2*page] = 1, 1
	if !bytes.Equal(content, want) {
		t.Error("the closed file is not that of the one commit")
	}
}

// An Update is durable also where a write alone would not be.
func TestUpdateIsVisibleToTheNextSnapshot(t *testing.T) {
	for _, engine := range []untorn.Engine{untorn.EngineReflection, untorn.EngineHybridLog, untorn.EngineShadow} {
		file := created(t, 2*page, untorn.Options{Engine: engine, Durability: untorn.PerCommit})
		began := time.Now()
		check(t, setWord(file, page, 7)) // joins the open epoch
		check(t, file.View(func(s *untorn.Snapshot) error {
			if seen, err := word(s, page); seen != 0 || err != nil {
				t.Errorf("an uncommitted write is in a snapshot: %d, %v", seen, err)
			}
			check(t, file.Update(func(tx *untorn.Tx) error { return setWord(tx, 0, 1) }))
			if seen, err := word(s, 0); seen != 0 || err != nil {
				t.Errorf("a commit changed a snapshot: %d, %v", seen, err)
			}
			return file.View(func(next *untorn.Snapshot) error {
				first, err := word(next, 0)
				second, err2 := word(next, page)
				if first != 1 || second != 7 || err != nil || err2 != nil || next.Commit() <= s.Commit() {
					t.Errorf("after the commit: %d, %d, %v, %v", first, second, err, err2)
				}
				return nil
			})
		}))
		number, at, err := file.LastCommit()
		if number == 0 || at.Before(began.Add(-time.Minute)) || at.After(time.Now().Add(time.Minute)) || err != nil {
			t.Errorf("the last commit is %d at %v, %v", number, at, err)
		}
		wanted := errors.New("of the function")
		if err := file.View(func(*untorn.Snapshot) error { return wanted }); err != wanted {
			t.Errorf("View returned %v", err)
		}
	}
}

// A transaction against an array of bytes.
func TestTransactionsAgainstAModel(t *testing.T) {
	const size = 5*page + 100
	random := rand.New(rand.NewSource(1))
	file := created(t, size, untorn.Options{})
	model := make([]byte, size)
	for round := 0; round < cases(25, 2000); round++ {
		next := bytes.Clone(model)
		commits := random.Intn(3) > 0
		err := file.Update(func(tx *untorn.Tx) error {
			for step := 0; step < 30; step++ {
				off := int64(random.Intn(size))
				n := min(random.Intn(1<<random.Intn(14)), size-int(off))
				if step%3 == 0 { // the same places again and again
					off, n = int64(off%4*(page-3)), 6
				}
				if random.Intn(2) == 0 {
					p := make([]byte, n)
					random.Read(p)
					written, err := tx.WriteAt(p, off)
					if written != n || err != nil {
						t.Fatalf("write of %d at %d: %d, %v", n, off, written, err)
					}
					copy(next[off:], p)
				}
				p := make([]byte, n)
				read, err := tx.ReadAt(p, off)
				if read != n || err != nil || !bytes.Equal(p, next[off:int(off)+n]) {
					t.Fatalf("round %d: read of %d at %d: %d, %v", round, n, off, read, err)
				}
			}
			if !commits {
				return io.ErrNoProgress
			}
			return nil
		})
		if commits == (err != nil) {
			t.Fatal(err)
		}
		if commits {
			model = next
		}
		whole := make([]byte, size)
		if _, err := file.ReadAt(whole, 0); err != nil || !bytes.Equal(whole, model) {
			t.Fatalf("round %d: the file differs, %v", round, err)
		}
	}
}

func TestReadsEndAsReaderAtSays(t *testing.T) {
	file := created(t, 100, untorn.Options{})
	check(t, setWord(file, 92, 5))
	check(t, file.Commit())
	readers := map[string]func(func(io.ReaderAt) error) error{
		"file": func(fn func(io.ReaderAt) error) error { return fn(file) },
		"snapshot": func(fn func(io.ReaderAt) error) error {
			return file.View(func(s *untorn.Snapshot) error { return fn(s) })
		},
		"update": func(fn func(io.ReaderAt) error) error {
			return file.Update(func(tx *untorn.Tx) error { return fn(tx) })
		},
	}
	for name, with := range readers {
		check(t, with(func(from io.ReaderAt) error {
			p := make([]byte, 20)
			if n, err := from.ReadAt(p, 92); n != 8 || err != io.EOF || p[0] != 5 {
				t.Errorf("%s: the last bytes: %d, %v", name, n, err)
			}
			for _, off := range []int64{100, 101, 1 << 62} {
				if n, err := from.ReadAt(p, off); n != 0 || err != io.EOF {
					t.Errorf("%s: beyond the end: %d, %v", name, n, err)
				}
			}
			if n, err := from.ReadAt(p, -1); n != 0 || !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%s: a negative offset: %d, %v", name, n, err)
			}
			if n, err := from.ReadAt(nil, 100); n != 0 || err != nil {
				t.Errorf("%s: nothing: %d, %v", name, n, err)
			}
			all, err := io.ReadAll(io.NewSectionReader(from, 0, 1000))
			if len(all) != 100 || err != nil {
				t.Errorf("%s: a section reader: %d, %v", name, len(all), err)
			}
			return nil
		}))
	}
}

func TestResizeKeepsWhatWasWritten(t *testing.T) {
	file := created(t, page, untorn.Options{})
	check(t, setWord(file, 0, 9))
	check(t, file.Resize(10*page))
	check(t, setWord(file, 10*page-8, 10))
	if file.Len() != 10*page {
		t.Errorf("the length is %d", file.Len())
	}
	if err := file.Resize(-1); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	check(t, file.Close())
	again, err := untorn.Open(file.Path(), nil)
	check(t, err)
	defer again.Close()
	first, err := word(again, 0)
	last, err2 := word(again, 10*page-8)
	if first != 9 || last != 10 || err != nil || err2 != nil {
		t.Errorf("%d, %d, %v, %v", first, last, err, err2)
	}
}

// A write from the middle of a value with Go pointers: cgo must not take them for passed ones.
func TestBuffersWithinGoValues(t *testing.T) {
	file := created(t, page, untorn.Options{})
	value := &struct {
		name *string
		buf  [16]byte
	}{name: new(string)}
	value.buf[3] = 3
	check(t, file.Update(func(tx *untorn.Tx) error {
		_, err := tx.WriteAt(value.buf[:], 0)
		return err
	}))
	_, err := file.WriteAt(value.buf[:], 100)
	check(t, err)
	value.buf[3] = 0
	if _, err := file.ReadAt(value.buf[:], 100); err != nil || value.buf[3] != 3 {
		t.Error(value.buf, err)
	}
	if n, err := file.WriteAt(nil, 0); n != 0 || err != nil {
		t.Error(n, err)
	}
}

// Each Update adds one to two counters that no reader may see differ.
func TestManyGoroutines(t *testing.T) {
	const writers = 3
	rounds := cases(6, 1000)
	file := created(t, 3*page, untorn.Options{})
	var ends atomic.Bool
	var writing, reading sync.WaitGroup
	same := func(from io.ReaderAt) error {
		first, err := word(from, 0)
		if err != nil {
			return err
		}
		second, err := word(from, 2*page)
		if err == nil && first != second {
			err = fmt.Errorf("the counters are %d and %d", first, second)
		}
		return err
	}
	for i := 0; i < writers; i++ {
		writing.Add(1)
		go func(own int64) {
			defer writing.Done()
			for round := 0; round < rounds; round++ {
				err := file.Update(func(tx *untorn.Tx) error {
					if err := same(tx); err != nil {
						return err
					}
					count, err := word(tx, 0)
					if err != nil {
						return err
					}
					return errors.Join(setWord(tx, 0, count+1), setWord(tx, 2*page, count+1))
				})
				if err == nil {
					err = setWord(file, page+8*own, uint64(round)) // beside the updates
				}
				if err != nil {
					t.Error(err)
				}
			}
		}(int64(i))
		reading.Add(1)
		go func() {
			defer reading.Done()
			for !ends.Load() {
				if err := file.View(func(s *untorn.Snapshot) error { return same(s) }); err != nil {
					t.Error(err)
					return
				}
				file.Len()
			}
		}()
	}
	writing.Wait()
	ends.Store(true)
	reading.Wait()
	if count, err := word(file, 0); count != uint64(writers*rounds) || err != nil {
		t.Errorf("%d updates of %d, %v", count, writers*rounds, err)
	}
}

// A close meets calls that run: each of them ends as if it came before or after.
func TestCloseBesideCalls(t *testing.T) {
	for round := 0; round < cases(2, 200); round++ {
		file := created(t, page, untorn.Options{})
		snapshot := must(file.Snapshot())
		var calls sync.WaitGroup
		var done atomic.Uint64
		for i := 0; i < 3; i++ {
			calls.Add(1)
			go func() {
				defer calls.Done()
				for {
					err := file.Update(func(tx *untorn.Tx) error {
						count, err := word(tx, 0)
						return errors.Join(err, setWord(tx, 0, count+1))
					})
					if errors.Is(err, fs.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					done.Add(1)
				}
			}()
		}
		for done.Load() < 3 {
			runtime.Gosched()
		}
		check(t, file.Close())
		calls.Wait()
		if err := file.Close(); !errors.Is(err, fs.ErrClosed) {
			t.Errorf("closed twice: %v", err)
		}
		check(t, snapshot.Close())
		again, err := untorn.Open(file.Path(), nil)
		check(t, err)
		if count, err := word(again, 0); count != done.Load() || err != nil {
			t.Errorf("%d of %d updates, %v", count, done.Load(), err)
		}
		check(t, again.Close())
	}
}

// The finalizer of a snapshot that the program forgot lets the file close.
func TestAForgottenSnapshotIsGivenUp(t *testing.T) {
	file := created(t, page, untorn.Options{})
	func() { must(file.Snapshot()) }()
	check(t, setWord(file, 0, 3))
	check(t, file.Close())
	for try := 0; ; try++ {
		runtime.GC()
		again, err := untorn.Open(file.Path(), &untorn.Options{Engine: untorn.EngineHybridLog})
		if err == nil { // another engine opens what nothing holds
			check(t, again.Close())
			return
		}
		if !errors.Is(err, syscall.EBUSY) || try == 1000 {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestKilledUpdates(t *testing.T) {
	path := scratch(t)
	for round := 0; round < cases(5, 200); round++ {
		said := killed(t, "updates", path, rand.Intn(12))
		file, err := untorn.Open(path, nil)
		check(t, err)
		first, err := word(file, 0)
		check(t, err)
		if first < said || first > said+1 {
			t.Errorf("the file has update %d, and %d was acknowledged", first, said)
		}
		for at := int64(1); at < 4; at++ {
			if other, err := word(file, at*page+at); other != first || err != nil {
				t.Errorf("counter %d is %d and counter 0 is %d, %v", at, other, first, err)
			}
		}
		check(t, file.Close())
	}
}

func updateUntilKilled(path string) {
	file := must(untorn.Open(path, &untorn.Options{Create: true, Size: 5 * page}))
	for {
		var count uint64
		err := file.Update(func(tx *untorn.Tx) error {
			count = must(word(tx, 0)) + 1
			for at := int64(0); at < 4; at++ {
				if err := setWord(tx, at*page+at, count); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(count)
	}
}
