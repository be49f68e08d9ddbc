package driver

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"
)

// The functions of libcufile that we call, by index.
const (
	cfDriverOpen = iota
	cfDriverClose
	cfHandleRegister
	cfHandleDeregister
	cfRead
	cfWrite
	cfGetVersion // from here on newer than the first release
	cfSetParameterBool
	cfSetParameterSizeT
	cfSetParameterString
	cfSetStatsLevel
	cfStatsStart
	cfStatsReset
	cfGetStatsL3
	cufileFunctions // how many
)

func cufileTable() []function {
	return []function{
		cfDriverOpen:         {names: []string{"cuFileDriverOpen"}},
		cfDriverClose:        {names: []string{"cuFileDriverClose_v2", "cuFileDriverClose"}}, // a macro in cufile.h
		cfHandleRegister:     {names: []string{"cuFileHandleRegister"}},
		cfHandleDeregister:   {names: []string{"cuFileHandleDeregister"}},
		cfRead:               {names: []string{"cuFileRead"}},
		cfWrite:              {names: []string{"cuFileWrite"}},
		cfGetVersion:         {names: []string{"cuFileGetVersion"}, optional: true},
		cfSetParameterBool:   {names: []string{"cuFileSetParameterBool"}, optional: true},
		cfSetParameterSizeT:  {names: []string{"cuFileSetParameterSizeT"}, optional: true},
		cfSetParameterString: {names: []string{"cuFileSetParameterString"}, optional: true},
		cfSetStatsLevel:      {names: []string{"cuFileSetStatsLevel"}, optional: true},
		cfStatsStart:         {names: []string{"cuFileStatsStart"}, optional: true},
		cfStatsReset:         {names: []string{"cuFileStatsReset"}, optional: true},
		cfGetStatsL3:         {names: []string{"cuFileGetStatsL3"}, optional: true},
	}
}

// fileDescriptor is CUfileDescr_t: cufile.h 1.15.1, x86-64 and arm64, 24 bytes.
type fileDescriptor struct {
	kind  int32 // 1: an ordinary file descriptor
	_     int32
	fd    int32 // of a union with a pointer
	_     int32
	fsOps uintptr
}

// These do not compile when a size differs from the C compiler's for cufile.h 1.15.1.
const (
	_ = -(unsafe.Sizeof(fileDescriptor{}) ^ 24)
	_ = -(unsafe.Offsetof(fileDescriptor{}.fd) ^ 8)
	_ = -(unsafe.Offsetof(fileDescriptor{}.fsOps) ^ 16)
)

// CuFile is libcufile, its driver open. All methods need a thread with a current CUDA context.
type CuFile struct {
	lib     *library
	version int // 1000*major + 10*minor; 0 where the library does not say
}

// Parameters of cuFileSetParameterBool, SizeT and String: enums of cufile.h 1.15.1.
const (
	paramAllowCompat  = 1 // bool
	paramForceCompat  = 2 // bool
	paramProfileStats = 0 // size_t
	paramLogLevel     = 0 // string
	paramLogFile      = 1 // string
)

// LoadCuFile loads libcufile; it does not open its driver yet.
func LoadCuFile(name string) (*CuFile, error) {
	names := []string{"libcufile.so.0", "/usr/local/cuda/lib64/libcufile.so.0"}
	if name != "" {
		names = []string{name}
	}
	lib, err := loadLibrary(names, cufileTable())
	if err != nil {
		return nil, fmt.Errorf("no libcufile: install NVIDIA's gds-tools or the pip package nvidia-cufile, and name its file with --libcufile: %w", err)
	}
	l := &CuFile{lib: lib}
	if lib.has(cfGetVersion) {
		var version int32
		if err := l.call(cfGetVersion, "cuFileGetVersion", uintptr(unsafe.Pointer(&version))); err != nil {
			return nil, err
		}
		l.version = int(version)
	}
	return l, nil
}

// configures says whether parameters are set by call, without a cufile.json (1.14 and later).
func (l *CuFile) configures() bool {
	return l.lib.has(cfSetParameterBool) && l.lib.has(cfSetParameterSizeT) && l.lib.has(cfSetParameterString)
}

// counts says whether there are statistics by call (1.15 and later).
func (l *CuFile) counts() bool {
	return l.lib.has(cfSetStatsLevel) && l.lib.has(cfStatsStart) && l.lib.has(cfStatsReset) && l.lib.has(cfGetStatsL3)
}

// call invokes a function that returns CUfileError_t: 8 bytes in one register, cuFile's code low, CUDA's high.
//
//go:uintptrescapes
func (l *CuFile) call(index int, name string, args ...uintptr) error {
	if !l.lib.has(index) {
		return fmt.Errorf("%w: %s %s has no %s: update it to CUDA 13 or later", ErrNoLibrary, l.lib.name, l.versionText(), name)
	}
	result := invoke(l.lib.fn[index], args...)
	code, cuda := int32(result), int32(uint64(result)>>32)
	if code != 0 {
		return &CuFileError{Call: name, Code: int(code), CUDA: int(cuda)}
	}
	return nil
}

func (l *CuFile) versionText() string {
	if l.version == 0 {
		return "(version unknown)"
	}
	return fmt.Sprintf("%d.%d", l.version/1000, l.version%1000/10)
}

// Open configures the driver by calls, so that no cufile.json is needed and no cufile.log litters the working
// directory, and opens it. compat says whether cuFile may move bytes by its own POSIX reads.
func (l *CuFile) Open(compat bool) error {
	if !l.configures() {
		if !compat {
			return fmt.Errorf("%w: %s %s cannot be told to refuse compat mode: update it to CUDA 12.9 or later", ErrNoLibrary, l.lib.name, l.versionText())
		}
		return l.call(cfDriverOpen, "cuFileDriverOpen")
	}
	allow := uintptr(0)
	if compat {
		allow = 1
	}
	if err := l.call(cfSetParameterBool, "cuFileSetParameterBool(ALLOW_COMPAT_MODE)", paramAllowCompat, allow); err != nil {
		return err
	}
	if !compat {
		if err := l.call(cfSetParameterBool, "cuFileSetParameterBool(FORCE_COMPAT_MODE)", paramForceCompat, 0); err != nil {
			return err
		}
	}
	// A library that refuses a log setting is none the worse for it.
	_ = l.call(cfSetParameterString, "cuFileSetParameterString", paramLogFile, uintptr(unsafe.Pointer(cString("/dev/null"))))
	if l.counts() {
		_ = l.call(cfSetParameterSizeT, "cuFileSetParameterSizeT", paramProfileStats, 3)
	}
	return l.call(cfDriverOpen, "cuFileDriverOpen")
}

func (l *CuFile) Close() error { return l.call(cfDriverClose, "cuFileDriverClose") }

// Register makes a cuFile handle of a file descriptor, which must stay open until deregister.
func (l *CuFile) Register(fd uintptr) (h Handle, err error) {
	const opaqueFD = 1
	d := fileDescriptor{kind: opaqueFD, fd: int32(fd)}
	err = l.call(cfHandleRegister, "cuFileHandleRegister", uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&d)))
	return h, err
}

func (l *CuFile) Deregister(h Handle) { invoke(l.lib.fn[cfHandleDeregister], uintptr(h)) }

// Read moves up to n bytes from offset of the file to HBM at base + skip. A short read is the end of the file.
func (l *CuFile) Read(h Handle, base Pointer, n, offset, skip int64) (int64, error) {
	return l.move(cfRead, "cuFileRead", h, base, n, offset, skip)
}

// Write moves up to n bytes of HBM at base + skip to the file's offset.
func (l *CuFile) Write(h Handle, base Pointer, n, offset, skip int64) (int64, error) {
	return l.move(cfWrite, "cuFileWrite", h, base, n, offset, skip)
}

func (l *CuFile) move(index int, name string, h Handle, base Pointer, n, offset, skip int64) (int64, error) {
	errno := errnoPlace()
	*errno = 0
	result := invoke(l.lib.fn[index], uintptr(h), uintptr(base), uintptr(n), uintptr(offset), uintptr(skip))
	return moveResult(name, int64(result), *errno, n)
}

// moveResult interprets the result of cuFileRead and cuFileWrite: a count, -code, or -1 with errno, in which versions were seen to
// leave one of cuFile's own codes (ai-dynamo/nixl pull request 2143).
func moveResult(call string, result int64, errno int32, wanted int64) (int64, error) {
	switch {
	case result > wanted:
		return 0, fmt.Errorf("%s: says that it moved %d bytes of %d", call, result, wanted)
	case result >= 0:
		return result, nil
	case result == -1 && errno > cufileBase:
		return 0, &CuFileError{Call: call, Code: int(errno)}
	case result == -1:
		return 0, fmt.Errorf("%s: %w", call, syscall.Errno(errno))
	case -result > cufileBase && -result < 2*cufileBase:
		return 0, &CuFileError{Call: call, Code: int(-result)}
	}
	return 0, errors.New(call + ": result of no known meaning")
}
