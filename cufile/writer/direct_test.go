package writer

import (
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/cufile/internal/driver"
)

func directOptions(l driver.Libraries) Options {
	return Options{Path: Direct, Require: true, Threads: 3, Libraries: l, Probe: []string{os.Args[0], probeArgument}}
}

// TestDirectIsClaimedOnlyWhereItIsProven by cuFile's own counters, in another process, and by what the kernel reads.
func TestDirectIsClaimedOnlyWhereItIsProven(t *testing.T) {
	for name, c := range map[string]struct {
		moved, version, write, register string
		proven                          bool
		want                            string
	}{
		"nvidia-fs":        {moved: "nvfs", proven: true},
		"P2PDMA":           {moved: "p2p", proven: true},
		"newer counters":   {moved: "p2p", version: "1190", proven: true},
		"short writes":     {moved: "p2p", write: "short", proven: true},
		"POSIX":            {moved: "posix", want: "POSIX writes"},
		"unaligned":        {moved: "unaligned", want: "unaligned"},
		"not counted":      {moved: "nothing", want: "unknown: cuFile counted 0 DMA writes"},
		"unknown counters": {moved: "p2p", version: "1300", want: "unknown"},
		"other bytes":      {moved: "p2p", write: "wrong", want: "other bytes"},
		"no handle":        {moved: "p2p", register: "5030", want: "5030"},
		"an error":         {moved: "p2p", write: "code:5008", want: "5008"},
		"an errno":         {moved: "p2p", write: "errno:28", want: "no space left"},
		"crash":            {write: "crash", want: "the probe died"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("FAKE_CUFILE_MOVED", c.moved)
			t.Setenv("FAKE_CUFILE_VERSION", c.version)
			t.Setenv("FAKE_CUFILE_WRITE", c.write)
			t.Setenv("FAKE_CUFILE_REGISTER", c.register)
			w := newWriter(t, directOptions(fakeLibraries(t)))
			dir := t.TempDir()
			p := pages(t, 2*ChunkSize, 1)
			q, err := w.Write(dir, []File{{"a", int64(len(p)), []Part{{0, hbm(t, w, p)}}}}, nil)
			must(t, err)
			r, err := q.Result()
			if c.proven {
				must(t, err)
				checkFiles(t, dir, []model{{"a", p}}, r)
				if r.Moved.Direct != int64(len(p)) || r.Choice.Path != Direct {
					t.Errorf("%+v %+v", r.Moved, r.Choice)
				}
				return
			}
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want one that says %q", err, c.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
				t.Errorf("%v %v is left", left, err)
			}
		})
	}
}

// TestDirectTakesWholeChunksOnly: the rest is staged, and the file is right.
func TestDirectTakesWholeChunksOnly(t *testing.T) {
	t.Setenv("FAKE_CUFILE_MOVED", "p2p")
	o := directOptions(fakeLibraries(t))
	w := newWriter(t, o)
	memory := pages(t, 12<<20, 7)
	random := rand.New(rand.NewPCG(5, 5))
	root := t.TempDir()
	for range 4 {
		var files []File
		var models []model
		for range 3 {
			f, m := layout(random, text(random), memory, func(p []byte) Memory { return hbm(t, w, p) })
			files, models = append(files, f), append(models, m)
		}
		p := memory[:9<<20]
		files = append(files, File{text(random), 4096 + int64(len(p)), []Part{{4096, hbm(t, w, p)}}})
		models = append(models, model{files[3].Name, append(make([]byte, 4096), p...)})
		q, err := w.Write(root, files, nil)
		must(t, err)
		r, err := q.Result()
		must(t, err)
		checkFiles(t, root, models, r)
		if r.Moved.Direct == 0 || r.Moved.Staged == 0 {
			t.Errorf("%+v, want both", r.Moved)
		}
	}
	for _, name := range []string{"fake_cufile_violations", "fake_cufile_handles"} {
		if n := ask(t, o.Libraries.CuFile, name); n != 0 {
			t.Errorf("%s is %d, want 0", name, n)
		}
	}
}

// TestDirectThatFailsLater is an error, not another path.
func TestDirectThatFailsLater(t *testing.T) {
	t.Setenv("FAKE_CUFILE_MOVED", "p2p")
	w := newWriter(t, directOptions(fakeLibraries(t)))
	dir := t.TempDir()
	p := pages(t, ChunkSize, 1)
	m := hbm(t, w, p)
	q, err := w.Write(dir, []File{{"a", ChunkSize, []Part{{0, m}}}}, nil)
	must(t, err)
	_, err = q.Result()
	must(t, err)
	t.Setenv("FAKE_CUFILE_WRITE", "errno:28")
	q, err = w.Write(dir, []File{{"b", ChunkSize, []Part{{0, m}}}}, nil)
	must(t, err)
	var failed *Error
	if _, err := q.Result(); !errors.As(err, &failed) || failed.Call != "cuFileWrite" || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("%v, want cuFile's error", err)
	}
}

func text(random *rand.Rand) string {
	name := make([]byte, 12)
	for i := range name {
		name[i] = byte('a' + random.IntN(26))
	}
	return string(name)
}
