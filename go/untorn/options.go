package untorn

// #include "shim.h"
import "C"

import (
	"strings"
	"unsafe"
)

// Engine says how a commit is made all-or-nothing.
type Engine uint32

const (
	// EngineAuto is the engine that the file has, and EngineReflection for a file without one. For a [Map] it is
	// EngineHybridLog.
	EngineAuto Engine = C.UNTORN_ENGINE_AUTO
	// EngineReflection keeps a second page beside each page. It suits small commits.
	EngineReflection Engine = C.UNTORN_ENGINE_REFLECTION
	// EngineHybridLog keeps a log for each block. It suits many or large writes to one commit.
	EngineHybridLog Engine = C.UNTORN_ENGINE_HYBRID_LOG
	// EngineShadow copies each page that a write touches whole. It is a baseline to compare with.
	EngineShadow Engine = C.UNTORN_ENGINE_SHADOW
	// EnginePassthrough promises nothing. It is for comparison.
	EnginePassthrough Engine = C.UNTORN_ENGINE_PASSTHROUGH
)

// Durability says when a [File.WriteAt] is durable. A [File.Update] is durable when it returns, whatever this is.
type Durability uint32

const (
	// DurabilityAuto is as the file was created, else per write on persistent memory and per commit on a disk.
	DurabilityAuto Durability = C.UNTORN_DURABILITY_AUTO
	// PerWrite makes each write a commit, durable when it returns.
	PerWrite Durability = C.UNTORN_DURABILITY_PER_WRITE
	// PerCommit lets writes join the open epoch, which [File.Commit] commits.
	PerCommit Durability = C.UNTORN_DURABILITY_PER_COMMIT
)

// Tracking says how a [Map] finds the pages that the program has stored to.
type Tracking uint32

const (
	// TrackingAuto is the best method that the kernel and the process's rights allow.
	TrackingAuto Tracking = C.UNTORN_TRACKING_AUTO
	// TrackingWriteProtect needs userfaultfd and Linux 6.7.
	TrackingWriteProtect Tracking = C.UNTORN_TRACKING_WRITE_PROTECT
	// TrackingPageTable works on every kernel.
	TrackingPageTable Tracking = C.UNTORN_TRACKING_PAGE_TABLE
)

// Options says how to open a file. The zero value, and nil, has all defaults: the file must exist, and opens for
// reading and writing.
type Options struct {
	// ReadOnly opens the file for reads: nothing changes, not even by recovery. After a crash the handle serves the
	// last commit.
	ReadOnly bool
	// Create creates a file of Size zero bytes if there is none, and lets an empty one grow to that size. Any other
	// file keeps its length. [OpenMap] has its own argument for the size.
	Create bool
	// Excl with Create: the file must not exist.
	Excl bool
	// Size is the length in bytes of a file that is created.
	Size int64
	// MaxLen is the length in bytes that the file may grow to while it is open. 0: 1 TiB, for a [Map] 64 MiB, and
	// twice the length if that is more.
	MaxLen int64

	// Engine is how commits work.
	Engine Engine
	// Durability is when a write is durable.
	Durability Durability
	// LogSize is the most bytes that the log of the engine HybridLog may take. 0: the default.
	LogSize int64
	// Tracking is how a [Map] finds stores.
	Tracking Tracking

	// Shared opens the file together with other processes that say so, too. Not for a [Map].
	Shared bool
	// KeepSidecar keeps the sidecar at the close, which makes it and the next open short. A copy of the file needs
	// the sidecar then.
	KeepSidecar bool
	// NoVerify checks less when a cleanly closed file with a sidecar is opened.
	NoVerify bool
	// SnapshotMemory is the bytes of memory that the snapshots of the file may take together, for pages of 4 KiB that
	// changed since; at least one page. Further pages go to a file without a name in the directory of the data file.
	// 0: 64 MiB.
	SnapshotMemory int64
	// NoServeSnapshots starts no thread that gives snapshots of the open file to other processes: there, [OpenSnapshot]
	// then fails with syscall.EBUSY. A process that opens one file for writing without it has that thread, and serves
	// all its files.
	NoServeSnapshots bool
	// LostPageSignal leaves a page that is lost (another program truncates the file, the medium fails) to Go's handler
	// of SIGBUS: a fault that ends the program, or a panic with [runtime/debug.SetPanicOnFault]. Without it the call
	// fails, or the next one on the map.
	LostPageSignal bool
}

// c is the options for the C library. The caller checks that the numbers are not negative.
func (o *Options) c() C.untorn_options {
	var c C.untorn_options
	flag := func(is bool, flag C.uint32_t) {
		if is {
			c.flags |= flag
		}
	}
	flag(o.ReadOnly, C.UNTORN_READ_ONLY)
	flag(o.Create, C.UNTORN_CREATE)
	flag(o.Excl, C.UNTORN_EXCL)
	flag(o.Shared, C.UNTORN_SHARED)
	flag(o.KeepSidecar, C.UNTORN_KEEP_SIDECAR)
	flag(o.NoVerify, C.UNTORN_NO_VERIFY)
	flag(o.NoServeSnapshots, C.UNTORN_NO_SERVE_SNAPSHOTS)
	flag(o.LostPageSignal, C.UNTORN_LOST_PAGE_SIGNAL)
	c.engine = C.uint32_t(o.Engine)
	c.durability = C.uint32_t(o.Durability)
	c.dirty_tracking = C.uint32_t(o.Tracking)
	c.length = C.uint64_t(o.Size)
	c.max_len = C.uint64_t(o.MaxLen)
	c.log_size = C.uint64_t(o.LogSize)
	c.snapshot_memory = C.uint64_t(o.SnapshotMemory)
	return c
}

// checked returns the path and the options for the C library. The caller frees the path.
func checked(path string, opts *Options) (*C.char, C.untorn_options, error) {
	if opts == nil {
		opts = &Options{}
	}
	if opts.Size < 0 || opts.MaxLen < 0 || opts.LogSize < 0 || opts.SnapshotMemory < 0 {
		return nil, C.untorn_options{}, invalid("open", path, "a size in the options is negative")
	}
	cpath, err := cPath("open", path)
	return cpath, opts.c(), err
}

// cPath returns the path for the C library. The caller frees it.
func cPath(op, path string) (*C.char, error) {
	if strings.IndexByte(path, 0) >= 0 {
		return nil, invalid(op, strings.ReplaceAll(path, "\x00", "\\0"), "the path has a zero byte")
	}
	return C.CString(path), nil
}

func free(path *C.char) {
	C.free(unsafe.Pointer(path))
}

// firstOf is the address of the first byte, for a call that does not keep it.
func firstOf(p []byte) *C.uint8_t {
	return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(p)))
}
