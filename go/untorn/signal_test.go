package untorn_test

import (
	"errors"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"untorn"
)

// fault calls access and returns the panic of a fault in it, or nil.
func fault(access func()) (why any) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { why = recover() }()
	access()
	return nil
}

// cut is a mapping of Go's own, behind whose back the file was cut off.
func cut(t testing.TB) []byte {
	file := must(os.Create(t.TempDir() + "/plain"))
	defer file.Close()
	if err := file.Truncate(2 * page); err != nil {
		t.Fatal(err)
	}
	memory := must(syscall.Mmap(int(file.Fd()), 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED))
	t.Cleanup(func() { syscall.Munmap(memory) })
	if err := file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	return memory
}

// lost loses a page of a map, and wants an error of the next call.
func lost(t *testing.T) {
	t.Helper()
	m := mapped(t, 8*page, nil)
	memory := m.Bytes()
	memory[7*page] = 1
	check(t, m.Commit())
	check(t, os.Truncate(m.Path(), page))
	seen := byte(1)
	if why := fault(func() { seen = memory[5*page]; memory[6*page] = 1 }); why != nil {
		t.Errorf("the lost page is a panic: %v", why)
	}
	if seen != 0 {
		t.Errorf("a lost page reads as %d", seen)
	}
	if err := m.Commit(); !errors.Is(err, syscall.EIO) {
		t.Errorf("commit after a lost page: %v", err)
	}
	if err := m.Rollback(); err == nil {
		t.Error("rollback after a lost page succeeds")
	}
	m.Close()
	if err := m.Commit(); err == nil {
		t.Error("the map is still open")
	}
}

// own is a fault that is Go's: a panic as ever.
func own(t *testing.T, memory []byte) {
	t.Helper()
	why := fault(func() { memory[0] = 1 })
	failed, ok := why.(interface{ Addr() uintptr })
	if !ok || failed.Addr() == 0 {
		t.Errorf("a fault in a mapping of Go's own gives %v", why)
	}
	var none *int
	if why := fault(func() { *none = 1 }); why == nil {
		t.Error("a nil pointer gives no panic")
	}
}

func TestALostPageIsAnErrorAndOtherFaultsAreGos(t *testing.T) {
	memory := cut(t)
	lost(t)
	own(t, memory)
	lost(t)

	// Programs that ask for the signal, before the next map and after.
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGBUS)
	lost(t)
	own(t, memory)
	signal.Stop(asked)
	signal.Ignore(syscall.SIGBUS)
	lost(t)
	own(t, memory)
	signal.Reset(syscall.SIGBUS)
	lost(t)
	own(t, memory)
	select {
	case got := <-asked:
		t.Errorf("the program was told of %v", got)
	default:
	}
}

// Each of many goroutines, on its small stack, loses pages of its own map.
func TestManyGoroutinesLosePages(t *testing.T) {
	done := make(chan error)
	const maps = 8
	for i := 0; i < maps; i++ {
		m := mapped(t, 16*page, nil)
		check(t, os.Truncate(m.Path(), 0))
		go func() {
			memory, sum := m.Bytes(), 0
			for at := 0; at < len(memory); at += page {
				sum += int(memory[at])
			}
			err := m.Commit()
			if sum != 0 {
				err = errors.New("a lost page is not of zeros")
			}
			done <- err
		}()
	}
	for i := 0; i < maps; i++ {
		if err := <-done; !errors.Is(err, syscall.EIO) {
			t.Error(err)
		}
	}
}

func TestReadsOfATruncatedFileFail(t *testing.T) {
	file := created(t, 64*page, untorn.Options{})
	check(t, os.Truncate(file.Path(), 0))
	_, err := file.ReadAt(make([]byte, 64*page), 0)
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("a read of lost pages: %v", err)
	}
}

func TestLostPageSignalLeavesTheFaultToGo(t *testing.T) {
	m := mapped(t, 8*page, &untorn.Options{LostPageSignal: true})
	check(t, os.Truncate(m.Path(), page))
	memory, seen := m.Bytes(), byte(0)
	if why := fault(func() { seen = memory[5*page] }); why == nil {
		t.Errorf("no fault, and %d", seen)
	}
}

// Without SetPanicOnFault a fault of Go's own ends the program as Go does it: with a stack trace that names the line.
func TestAFaultOfGoStillEndsTheProgram(t *testing.T) {
	path := scratch(t)
	said, err := child("fault", path).CombinedOutput()
	if err == nil || !strings.Contains(err.Error(), "exit status 2") {
		t.Errorf("the child ended with %v", err)
	}
	contains(t, string(said), "unexpected fault address", "SIGBUS", "signal_test.go")
}

func faultOfGo(path string) {
	m := must(untorn.OpenMap(path, page, nil))
	m.Bytes()[0] = 1
	file := must(os.Create(path + ".plain"))
	if err := file.Truncate(page); err != nil {
		panic(err)
	}
	memory := must(syscall.Mmap(int(file.Fd()), 0, page, syscall.PROT_READ, syscall.MAP_SHARED))
	if err := file.Truncate(0); err != nil {
		panic(err)
	}
	println(memory[0])
}
