package untorn_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"untorn"
)

// trackings are the methods that this machine has.
func trackings(t *testing.T) []untorn.Tracking {
	methods := []untorn.Tracking{untorn.TrackingPageTable}
	m, err := untorn.OpenMap(scratch(t), page, &untorn.Options{Tracking: untorn.TrackingWriteProtect})
	if err != nil {
		t.Logf("without write protection: %v", err)
		return methods
	}
	check(t, m.Close())
	return append(methods, untorn.TrackingWriteProtect)
}

func counter(memory []byte, at int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&memory[at]))
}

func TestMapsCommitAndRollBack(t *testing.T) {
	for _, tracking := range trackings(t) {
		opts := &untorn.Options{Tracking: tracking}
		m := mapped(t, 3*page, opts)
		memory := m.Bytes()
		if len(memory) != 3*page || cap(memory) != 3*page || m.Len() != 3*page {
			t.Fatalf("%d bytes of %d", len(memory), cap(memory))
		}
		copy(memory[page-2:], "four")
		check(t, m.Commit())
		memory[0], memory[2*page] = 8, 9
		check(t, m.Rollback())
		if memory[0] != 0 || memory[2*page] != 0 || string(memory[page-2:page+2]) != "four" {
			t.Error("the rollback did not restore the commit")
		}
		memory[1] = 1 // not committed
		check(t, m.View(func(s *untorn.Snapshot) error {
			content := make([]byte, 3*page)
			if _, err := s.ReadAt(content, 0); err != nil {
				return err
			}
			if content[1] != 0 || string(content[page-2:page+2]) != "four" {
				t.Error("the snapshot is not the last commit")
			}
			copy(memory[page-2:], "more")
			check(t, m.Commit())
			if n, err := s.ReadAt(content[:4], page-2); n != 4 || err != nil || string(content[:4]) != "four" {
				t.Error("a commit changed a snapshot")
			}
			return nil
		}))
		memory[0] = 77
		check(t, m.Close())
		if m.Bytes() != nil || m.Len() != 0 {
			t.Error("a closed map has memory")
		}
		content, err := os.ReadFile(m.Path())
		check(t, err)
		want := make([]byte, 3*page)
		want[1] = 1
		copy(want[page-2:], "more")
		if !bytes.Equal(content, want) {
			t.Error("the closed file is not that of the last commit")
		}
		for at, err := range []error{m.Commit(), m.CommitBesideStores(), m.Rollback(), m.Resize(1), m.Close(),
			m.View(func(*untorn.Snapshot) error { return nil })} {
			if !errors.Is(err, fs.ErrClosed) {
				t.Errorf("call %d of a closed map: %v", at, err)
			}
		}
	}
}

func TestMapsGrowInPlace(t *testing.T) {
	m := mapped(t, 2*page, nil)
	before := &m.Bytes()[0]
	m.Bytes()[0] = 1
	check(t, m.Resize(1000*page))
	grown := m.Bytes()
	if &grown[0] != before || len(grown) != 1000*page || grown[0] != 1 || grown[1000*page-1] != 0 {
		t.Error("the memory is another after growth")
	}
	grown[1000*page-1] = 2
	check(t, m.Rollback())
	if m.Len() != 2*page || len(m.Bytes()) != 2*page || m.Bytes()[0] != 0 {
		t.Error("the rollback did not restore the length")
	}
	check(t, m.Resize(1000*page))
	m.Bytes()[1000*page-1] = 3
	check(t, m.Commit())
	for _, n := range []int64{-1, 1 << 50} {
		if err := m.Resize(n); !errors.Is(err, syscall.EINVAL) {
			t.Error(err)
		}
	}
	check(t, m.Close())

	again, err := untorn.OpenMap(m.Path(), 7, nil) // a file that exists keeps its length
	check(t, err)
	if again.Len() != 1000*page || again.Bytes()[1000*page-1] != 3 {
		t.Error("the committed length is lost")
	}
	if _, err := untorn.OpenMap(m.Path(), 0, nil); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	check(t, again.Close())

	reader, err := untorn.OpenMap(m.Path(), 0, &untorn.Options{ReadOnly: true})
	check(t, err)
	defer reader.Close()
	reader.Bytes()[0] = 200 // of this map alone
	if err := reader.Commit(); !errors.Is(err, syscall.EROFS) {
		t.Error(err)
	}
}

func TestGoroutinesStoreBesideCommits(t *testing.T) {
	const last = 9*page - 8
	for _, tracking := range trackings(t) {
		m := mapped(t, 9*page, &untorn.Options{Tracking: tracking})
		memory := m.Bytes()
		var ends atomic.Bool
		var storing sync.WaitGroup
		for i := 0; i < 2; i++ {
			storing.Add(1)
			go func() {
				defer storing.Done()
				for !ends.Load() {
					counter(memory, last).Add(1)
					counter(memory, 0).Add(1)
				}
			}()
		}
		stop := func() {
			ends.Store(true)
			storing.Wait()
		}
		defer stop() // before the memory goes
		for counter(memory, 0).Load() == 0 {
			runtime.Gosched()
		}
		for round := 0; round < cases(20, 2000); round++ {
			before := counter(memory, 0).Load()
			check(t, m.CommitBesideStores())
			check(t, m.View(func(s *untorn.Snapshot) error {
				first, err := word(s, 0)
				if first < before {
					t.Errorf("the commit has count %d of %d", first, before)
				}
				return err
			}))
		}
		stop()
		count := counter(memory, 0).Load()
		check(t, m.CommitBesideStores())
		check(t, m.Close())
		content, err := os.ReadFile(m.Path())
		check(t, err)
		if first, second := binary.LittleEndian.Uint64(content), binary.LittleEndian.Uint64(content[last:]); first != count ||
			second != count || count == 0 {
			t.Errorf("the file has %d and %d of %d", first, second, count)
		}
	}
}

// Methods of one map at once; those that change the length take turns with the others.
func TestMapMethodsAtOnce(t *testing.T) {
	m := mapped(t, page, nil)
	var calls sync.WaitGroup
	for i := 0; i < 4; i++ {
		calls.Add(1)
		go func(own int64) {
			defer calls.Done()
			for round := int64(1); round < 20; round++ {
				if err := errors.Join(m.Commit(), m.Resize(own*round*page), m.Rollback()); err != nil {
					t.Error(err)
				}
				if m.Len()%page != 0 || len(m.Bytes())%page != 0 {
					t.Error("a length that no resize set")
				}
			}
		}(int64(i + 1))
	}
	calls.Wait()
	check(t, m.Close())
}

func TestKilledMapCommits(t *testing.T) {
	path := scratch(t)
	for round := 0; round < cases(5, 200); round++ {
		said := killed(t, "map commits", path, rand.Intn(12))
		m, err := untorn.OpenMap(path, 0, nil)
		check(t, err)
		memory := m.Bytes()
		first := binary.LittleEndian.Uint64(memory)
		if first < said || first > said+1 {
			t.Errorf("the file has commit %d, and %d was acknowledged", first, said)
		}
		for at := 0; at < len(memory); at += 8 {
			if other := binary.LittleEndian.Uint64(memory[at:]); other != first {
				t.Fatalf("torn: word %d is %d and word 0 is %d", at/8, other, first)
			}
		}
		check(t, m.Close())
	}
}

func commitUntilKilled(path string) {
	m := must(untorn.OpenMap(path, 16*page, nil))
	memory := m.Bytes()
	for count := binary.LittleEndian.Uint64(memory) + 1; ; count++ {
		for at := 0; at < len(memory); at += 8 {
			binary.LittleEndian.PutUint64(memory[at:], count)
		}
		if err := m.Commit(); err != nil {
			panic(err)
		}
		fmt.Println(count)
	}
}
