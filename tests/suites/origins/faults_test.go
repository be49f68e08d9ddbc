package origins_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// TestServerFaults has every twentieth answer fail, in all ways in turn. Every byte is right, and no read fails.
func TestServerFaults(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	kinds := []sitetest.Fault{sitetest.ServerFail, sitetest.SlowDown, sitetest.Reset, sitetest.HangUp, sitetest.Short, sitetest.OtherRange, sitetest.Stall}
	servers.OnEvery(t, func(t *testing.T, s *sitetest.Site) {
		files := map[string][]byte{"large.bin": origintest.Data(20<<20, 1)}
		for i := range 150 {
			files[fmt.Sprintf("small/%03d.bin", i)] = origintest.Data(5000+i, byte(i))
		}
		s.PutAll(t, files)
		var mu sync.Mutex
		met := map[sitetest.Fault]int{}
		s.SetFault(func(number int, _ sitetest.Asked) sitetest.Fault {
			if number%20 != 10 {
				return sitetest.None
			}
			kind := kinds[number/20%len(kinds)]
			mu.Lock()
			defer mu.Unlock()
			met[kind]++
			return kind
		})
		// A stall lasts a quarter of patience.
		m := servers.Mount(t, s.Source, "", "--patience", "20s", "--cache-dir", suite.NewDir(t), "--cache-segment", "1MiB")
		var wg sync.WaitGroup
		names := make(chan string)
		for range 4 {
			wg.Go(func() {
				for name := range names {
					if err := sitetest.CompareFile(m.Path(name), files[name]); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for name := range files {
			names <- name
		}
		close(names)
		wg.Wait()
		mu.Lock()
		defer mu.Unlock()
		for _, kind := range kinds {
			if met[kind] == 0 {
				t.Errorf("no answer failed by %q: %v", kind, met)
			}
		}
		if st := m.Status(t).Origin; st.Retries == 0 || st.Failed != 0 {
			t.Errorf("%+v, want retries and nothing given up", st)
		}
		if t.Failed() {
			t.Logf("log:\n%s", m.LogText(t))
		}
	})
}

// TestReplacedUnderTheMount replaces objects. Bytes that are not here yet are ESTALE, others stay as they were listed,
// and a new mount has the new objects, as other inodes.
func TestReplacedUnderTheMount(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	servers.OnEvery(t, func(t *testing.T, s *sitetest.Site) {
		before := map[string][]byte{"here.bin": origintest.Data(300_000, 1), "part.bin": origintest.Data(12<<20, 2)}
		after := map[string][]byte{"here.bin": origintest.Data(300_000, 3), "part.bin": origintest.Data(12<<20, 4)}
		s.PutAll(t, before)
		flags := []string{"--cache-dir", suite.NewDir(t), "--cache-segment", "1MiB"}
		m := servers.Mount(t, s.Source, "", flags...)
		must(t, sitetest.CompareFile(m.Path("here.bin"), before["here.bin"]))
		part, err := os.Open(m.Path("part.bin"))
		must(t, err)
		defer func() { must(t, part.Close()) }()
		checkRange(t, part, before["part.bin"], 0, 4096)
		m.SettledBut(t, 1)
		s.PutAll(t, after)

		for _, open := range []func() (*os.File, error){
			func() (*os.File, error) { return os.NewFile(dup(t, part), "part"), nil },
			func() (*os.File, error) { return os.Open(m.Path("part.bin")) },
		} {
			f, err := open()
			must(t, err)
			if n, err := f.ReadAt(make([]byte, 4096), 10<<20); !errors.Is(err, syscall.ESTALE) {
				t.Errorf("a part of an object that was replaced: %d bytes, %v; want ESTALE", n, err)
			}
			must(t, f.Close())
		}
		checkRange(t, part, before["part.bin"], 0, 4096)
		if err := sitetest.CompareFile(m.Path("here.bin"), before["here.bin"]); err != nil {
			t.Errorf("an object that is here as it was listed: %v", err)
		}
		if log := m.LogText(t); !strings.Contains(log, "part.bin") || !strings.Contains(log, "level=ERROR") {
			t.Errorf("the log has no line about the object:\n%s", log)
		}

		again := servers.Mount(t, s.Source, "", flags...)
		again.Compare(t, after)
		for name := range after {
			if inode(t, m.Path(name)) == inode(t, again.Path(name)) {
				t.Errorf("%s is another object, as the same inode", name)
			}
		}
	})
}

func dup(t *testing.T, f *os.File) uintptr {
	t.Helper()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must(t, err)
	return uintptr(fd)
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(path, &st))
	return st.Ino
}

func checkRange(t *testing.T, f *os.File, want []byte, off, n int) {
	t.Helper()
	got := make([]byte, n)
	if _, err := f.ReadAt(got, int64(off)); (err != nil && err != io.EOF) || !bytes.Equal(got, want[off:off+n]) {
		t.Errorf("%d bytes at %d: %v, or other bytes", n, off, err)
	}
}

// TestServerStops has the server of a mount go away and come back. Bytes that are not here are EIO once patience is over,
// never "no such file"; others can be read.
func TestServerStops(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	servers.OnEvery(t, func(t *testing.T, s *sitetest.Site) {
		files := map[string][]byte{"here.bin": origintest.Data(300_000, 1), "away.bin": origintest.Data(300_000, 2)}
		s.PutAll(t, files)
		m := servers.Mount(t, s.Source, "", "--patience", "5s", "--cache-dir", suite.NewDir(t))
		must(t, sitetest.CompareFile(m.Path("here.bin"), files["here.bin"]))
		m.SettledBut(t, 1) // the other's head
		s.SetAnswer(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
		away, err := os.Open(m.Path("away.bin"))
		must(t, err)
		defer func() { must(t, away.Close()) }()
		if n, err := away.ReadAt(make([]byte, 4096), 290_000); !errors.Is(err, syscall.EIO) {
			t.Errorf("an object that cannot be fetched: %d bytes, %v; want EIO", n, err)
		}
		if info, err := os.Stat(m.Path("away.bin")); err != nil || info.Size() != 300_000 {
			t.Errorf("an object that cannot be fetched: %v, %v", info, err)
		}
		if err := sitetest.CompareFile(m.Path("here.bin"), files["here.bin"]); err != nil {
			t.Errorf("an object that is here: %v", err)
		}
		m.ReadByExtents(t, sitetest.Sum("here.bin", files["here.bin"]))
		if log := m.LogText(t); !strings.Contains(log, "away.bin") || !strings.Contains(log, "cannot be reached") {
			t.Errorf("the log has no line that says so:\n%s", log)
		}
		s.SetAnswer(nil)
		var last error
		if !blackbox.Within(patience, func() bool { last = sitetest.CompareFile(m.Path("away.bin"), files["away.bin"]); return last == nil }) {
			t.Errorf("the server is back: %v", last)
		}
	})
}

// TestMountOfWhatIsNotThere wants one sentence from the command, and no daemon.
func TestMountOfWhatIsNotThere(t *testing.T) {
	blackbox.NeedFUSE(t)
	t.Parallel()
	servers.NeedS3(t)
	p := sitetest.NewProxy(t, s3.Socket)
	for source, want := range map[string]string{
		"s3://bucket?endpoint=http://127.0.0.1:1": "the origin cannot be reached",
		"http://127.0.0.1:1/pile/":                "the origin cannot be reached",
		"http://hbmfs.invalid/pile/":              "the origin cannot be reached", // a name that nobody may have
		sitetest.S3Source(p, "no-such-bucket"):    "there is no bucket",
		"s3://bucket?endpoint=nowhere":            "or http://HOST:PORT, and nothing more",
		"ftp://host/pile":                         "there are s3://",
		"s3://key:secret@bucket":                  "credentials do not belong in a source",
	} {
		point, flags := suite.NewDir(t), []string{}
		if strings.Contains(want, "reached") { // nobody listens there; a listener may take its time
			flags = []string{"--patience", "500ms"}
		}
		if _, err := suite.Mount(t.Context(), source, point, flags...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("mounting %s: %v, want %q", source, err, want)
		}
	}
}
