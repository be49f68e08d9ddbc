package volume_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
)

// largest is the most bytes that the file of the random operations has.
const largest = 1 << 20

// exerciser does operations on a file of a draft, and has what must be in it.
type exerciser struct {
	path  string
	file  *os.File
	model []byte
	ramp  []byte // 0 to 255, again and again: what is written is a part of it
	rnd   *rand.Rand
	last  []string
}

func (x *exerciser) logf(format string, args ...any) {
	if x.last = append(x.last, fmt.Sprintf(format, args...)); len(x.last) > 12 {
		x.last = x.last[1:]
	}
}

// grow makes the model at least n bytes long.
func (x *exerciser) grow(n int) {
	if n > len(x.model) {
		x.model = append(x.model, make([]byte, n-len(x.model))...)
	}
}

// some are the next bytes to write.
func (x *exerciser) some(most int) []byte {
	n := 1 + x.rnd.IntN(most)
	b := int(x.rnd.Uint32()|1) & 0xff
	return x.ramp[b : b+n]
}

// one does one operation.
func (x *exerciser) one() error {
	at := x.rnd.IntN(largest - 70<<10)
	switch x.rnd.IntN(12) {
	case 0, 1:
		p := x.some(64 << 10)
		x.logf("write %d at %d", len(p), at)
		x.grow(at + len(p))
		copy(x.model[at:], p)
		_, err := x.file.WriteAt(p, int64(at))
		return err
	case 2:
		x.logf("truncate %d", at)
		if at < len(x.model) {
			x.model = x.model[:at]
		}
		x.grow(at)
		return x.file.Truncate(int64(at))
	case 3:
		x.logf("append past a hole")
		return x.appended()
	case 4, 5:
		return x.mapped(at)
	case 6:
		return x.punched(at)
	case 7:
		x.logf("allocate %d", at)
		x.grow(at + 4096)
		return unix.Fallocate(int(x.file.Fd()), 0, int64(at), 4096)
	case 8:
		x.logf("open again, and sync")
		if err := errors.Join(x.file.Sync(), x.file.Close()); err != nil {
			return err
		}
		var err error
		x.file, err = os.OpenFile(x.path, os.O_RDWR, 0)
		return err
	case 9:
		to := x.path + "2"
		x.logf("rename there and back")
		return errors.Join(os.Rename(x.path, to), os.Rename(to, x.path))
	default:
		return x.compared(at)
	}
}

func (x *exerciser) appended() error {
	f, err := os.OpenFile(x.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	p := x.some(100)
	x.model = append(x.model, p...)
	_, err = f.Write(p)
	return errors.Join(err, f.Close())
}

// mapped writes through a mapping.
func (x *exerciser) mapped(at int) error {
	if at >= len(x.model) {
		return nil
	}
	p := x.some(min(32<<10, len(x.model)-at))
	x.logf("map, and write %d at %d", len(p), at)
	m, err := unix.Mmap(int(x.file.Fd()), 0, len(x.model), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(m[at:], p)
	copy(x.model[at:], p)
	if !bytes.Equal(m, x.model) {
		err = errors.New("the mapping differs")
	}
	return errors.Join(err, unix.Munmap(m))
}

func (x *exerciser) punched(at int) error {
	if at >= len(x.model) {
		return nil
	}
	n := min(1+x.rnd.IntN(32<<10), len(x.model)-at)
	x.logf("punch %d at %d", n, at)
	clear(x.model[at : at+n])
	return unix.Fallocate(int(x.file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(at), int64(n))
}

// compared reads from a place on, and asks for the size.
func (x *exerciser) compared(at int) error {
	info, err := os.Stat(x.path)
	if err != nil {
		return err
	}
	if info.Size() != int64(len(x.model)) {
		return fmt.Errorf("it has %d bytes, want %d", info.Size(), len(x.model))
	}
	p := make([]byte, 70<<10)
	n, _ := x.file.ReadAt(p, int64(at)) // at its end it is short
	if want := x.model[min(at, len(x.model)):]; !bytes.Equal(p[:n], want[:min(len(want), len(p))]) {
		return fmt.Errorf("%d bytes at %d differ", n, at)
	}
	return nil
}

// TestRandomOperations does random operations on a file of a draft, and compares it with what must be in it. The daemon is killed now
// and then.
func TestRandomOperations(t *testing.T) {
	v := mount(t)
	operations := blackbox.Rounds(2400, 6000)
	dir := v.Draft(t, "random", nil)
	f, err := os.Create(dir + "/file")
	blackbox.Must(t, err)
	seed := blackbox.Seed(t)
	x := &exerciser{path: dir + "/file", file: f, rnd: rand.New(rand.NewPCG(seed, 1))}
	for i := range 1<<16 + 256 {
		x.ramp = append(x.ramp, byte(i))
	}
	for i := range operations {
		if i%600 == 500 {
			v.Kill(t)
		}
		if err := x.one(); err != nil {
			t.Fatalf("operation %d of seed %d: %v\nthe last ones: %q", i, seed, err, x.last)
		}
	}
	blackbox.Must(t, x.file.Close())
	blackbox.Must(t, v.Publish("random"))
	for _, path := range []string{v.Path("random", "file"), v.Dir + "/random/file"} {
		if text, err := os.ReadFile(path); err != nil || !bytes.Equal(text, x.model) {
			t.Errorf("%s differs, seed %d: %v", path, seed, err)
		}
	}
}

// TestFsx runs fsx on a file of a draft, where HBMFS_FSX or the PATH has it (cargo install fsx).
func TestFsx(t *testing.T) {
	program := os.Getenv("HBMFS_FSX")
	if program == "" {
		var err error
		if program, err = exec.LookPath("fsx"); err != nil {
			t.Skip("needs fsx: cargo install fsx; TestRandomOperations does the like")
		}
	}
	v := mount(t)
	dir, artifacts := v.Draft(t, "fsx", nil), suite.NewDir(t)
	config := artifacts + "/config"
	blackbox.Must(t, os.WriteFile(config, []byte("[weights]\nclose_open = 1\nread = 10\nwrite = 10\nmapread = 10\nmapwrite = 10\ntruncate = 10\nfsync = 1\nfdatasync = 1\npunch_hole = 5\nposix_fallocate = 1\ninvalidate = 1\nsendfile = 1\ncopy_file_range = 1\n"), 0o644))
	for _, seed := range []string{"1", "2", "3"} {
		out, err := exec.Command(program, "-N", "10000", "-S", seed, "-q", "-f", config, "-P", artifacts, dir+"/file"+seed).CombinedOutput()
		if err != nil {
			t.Fatalf("fsx, seed %s: %v\n%s", seed, err, out)
		}
	}
	blackbox.Must(t, v.Publish("fsx"))
}
