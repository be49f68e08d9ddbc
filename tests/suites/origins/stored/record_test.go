package stored_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/internal/commands/warm/touched"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// warm runs hbmfs warm, and gives what --json prints.
func warm(t *testing.T, args ...string) (s touched.Summary) {
	t.Helper()
	out, err := suite.Output(t.Context(), append([]string{"warm", "--json"}, args...)...)
	must(t, err)
	must(t, json.Unmarshal(out, &s))
	return s
}

// readAt reads a few bytes, and compares.
func readAt(t *testing.T, m *sitetest.Mounted, files map[string][]byte, name string, off int64) {
	t.Helper()
	f, err := os.Open(m.Path(name))
	must(t, err)
	defer func() { _ = f.Close() }()
	buf := make([]byte, 1000)
	n, err := f.ReadAt(buf, off)
	if err != nil && err != io.EOF || string(buf[:n]) != string(files[name][off:off+int64(n)]) {
		t.Errorf("%s at %d: %v, or other bytes", name, off, err)
	}
}

func segmentOfFile(name string, off int64) string { return fmt.Sprint(name, "@", off/sitetest.Segment) }

// A job reads samples at random; its record, replayed on another node, brings the segments of these, so that the next job asks the
// origin for nothing that the first has read.
func TestRecordAndReplay(t *testing.T) {
	blackbox.NeedFUSE(t)
	servers.OnEvery(t, func(t *testing.T, s *sitetest.Site) {
		files := map[string][]byte{}
		for i := range 4 {
			files[fmt.Sprintf("deep/train-%d.bin", i)] = sitetest.Tokens(3*sitetest.Segment + i)
		}
		s.PutAll(t, files)
		first := servers.Mount(t, s.Source, "", "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag)
		random := rand.New(rand.NewPCG(1, 2))
		type place struct {
			name string
			off  int64
		}
		var samples []place
		var order []string
		for range 6 {
			name := fmt.Sprintf("deep/train-%d.bin", random.IntN(4))
			p := place{name, random.Int64N(3*sitetest.Segment - 2000)}
			samples = append(samples, p)
			for _, off := range []int64{p.off, p.off + 999} {
				if is := segmentOfFile(name, off); !slices.Contains(order, is) {
					order = append(order, is)
				}
			}
			readAt(t, first, files, p.name, p.off)
		}
		record := filepath.Join(suite.NewDir(t), "pile.record")
		warm(t, "--record", record, first.Path())
		r, err := touched.Load(record)
		must(t, err)
		var got []string
		for _, touch := range r.Touches {
			if is := segmentOfFile(r.Files[touch[0]].Name, touch[1]); slices.Contains(order, is) { // the kernel reads a little ahead
				got = append(got, is)
			}
		}
		if !slices.Equal(got, order) {
			t.Errorf("the record has %q, read was %q", got, order)
		}

		next := servers.Mount(t, s.Source, "", "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag)
		done := warm(t, "--replay", record, next.Path())
		if done.Local+done.Fetched != r.Bytes() || done.Left+done.Other+done.Missing+done.Denied+done.Unkept+done.Beyond > 0 {
			t.Errorf("%+v of %d bytes", done, r.Bytes())
		}
		before := len(s.Asked())
		for _, p := range samples {
			readAt(t, next, files, p.name, p.off)
		}
		for _, a := range s.Asked()[before:] {
			if slices.Contains(order, segmentOfFile(strings.TrimPrefix(a.Path[strings.Index(a.Path, "deep"):], "/"), a.From)) {
				t.Errorf("asked for again: %+v", a)
			}
		}
		if again := warm(t, "--replay", record, next.Path()); again.Local != r.Bytes() || again.Fetched > 0 {
			t.Errorf("the second time: %+v", again)
		}
	})
}

// Files that have another version now are left out, and counted; where nothing is as it was, the command says so.
func TestReplayOfAnotherVersion(t *testing.T) {
	blackbox.NeedFUSE(t)
	s := servers.HTTPSite(t)
	files := map[string][]byte{"a.bin": sitetest.Tokens(sitetest.Segment), "b.bin": sitetest.Tokens(sitetest.Segment + 5), "c.bin": sitetest.Tokens(100)}
	s.PutAll(t, files)
	m := servers.Mount(t, s.Source, "", "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag)
	m.Compare(t, files)
	record := filepath.Join(suite.NewDir(t), "pile.record")
	warm(t, "--record", record, m.Path())
	s.Put(t, "a.bin", sitetest.Tokens(sitetest.Segment/2))
	r, err := touched.Load(record)
	must(t, err)
	r.Files = append(r.Files, touched.File{Name: "gone.bin", Version: "v", Size: 10}, touched.File{Name: ".hbmfs/status", Version: "v", Size: 10})
	r.Touches = append(r.Touches, [3]int64{int64(len(r.Files) - 2), 0, 10}, [3]int64{int64(len(r.Files) - 1), 0, 7})
	must(t, r.Save(record))
	next := servers.Mount(t, s.Source, "", "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag)
	done := warm(t, "--replay", record, next.Path())
	of := func(name string) int64 { return int64(len(files[name])) }
	if done.Other != of("a.bin") || done.Missing != 10 || done.Unkept != 7 || done.Local+done.Fetched != of("b.bin")+of("c.bin") || done.Left > 0 {
		t.Errorf("%+v", done)
	}
	s.PutAll(t, map[string][]byte{"b.bin": sitetest.Tokens(50), "c.bin": sitetest.Tokens(50)})
	last := servers.Mount(t, s.Source, "", "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag)
	r.Touches = r.Touches[:len(r.Touches)-1]
	must(t, r.Save(record))
	if _, err := suite.Output(t.Context(), "warm", "--replay", record, last.Path()); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("nothing is as it was: %v", err)
	}
}

// A record that begins now ends with Ctrl-C, and is saved then. It has nothing of the read data before.
func TestRecordUntilInterrupted(t *testing.T) {
	blackbox.NeedFUSE(t)
	s := servers.HTTPSite(t)
	files := map[string][]byte{"a.bin": sitetest.Tokens(1000), "b.bin": sitetest.Tokens(2000)}
	s.PutAll(t, files)
	m := servers.Mount(t, s.Source, "", "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag)
	readAt(t, m, files, "a.bin", 0)
	record := filepath.Join(suite.NewDir(t), "pile.record")
	cmd := exec.CommandContext(t.Context(), suite.Path(), "warm", "--record", record, "--for", "10m", m.Path())
	said, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	line := make([]byte, 100)
	n, err := said.Read(line)
	must(t, err)
	if !strings.Contains(string(line[:n]), "recording for 10m") {
		t.Errorf("it says %q", line[:n])
	}
	readAt(t, m, files, "b.bin", 0)
	must(t, cmd.Process.Signal(syscall.SIGINT))
	go func() { _, _ = io.Copy(io.Discard, said) }() // ends with the process
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	r, err := touched.Load(record)
	must(t, err)
	if len(r.Files) != 1 || r.Files[0].Name != "b.bin" {
		t.Errorf("%+v", r)
	}
}

// A record goes on with the next daemon of the mount: it has what was read of both, says that it has a gap, and is replayed.
func TestRecordGoesOnWithTheNextDaemon(t *testing.T) {
	blackbox.NeedRoot(t)
	s := servers.HTTPSite(t)
	files := map[string][]byte{"a.bin": sitetest.Tokens(1000), "b.bin": sitetest.Tokens(2000)}
	s.PutAll(t, files)
	m := servers.MountKept(t, s.Source, "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag)
	record := filepath.Join(suite.NewDir(t), "pile.record")
	cmd := exec.CommandContext(t.Context(), suite.Path(), "warm", "--record", record, "--for", "1h", m.Path())
	pipe, err := cmd.StderrPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := make(chan string, 10)
	go func() { // ends with the process
		defer close(lines)
		for each := bufio.NewScanner(pipe); each.Scan(); {
			lines <- each.Text()
		}
	}()
	says := func(want string) {
		t.Helper()
		select {
		case line := <-lines:
			if !strings.Contains(line, want) {
				t.Fatalf("it says %q, want %q", line, want)
			}
		case <-time.After(patience):
			t.Fatalf("it does not say %q", want)
		}
	}
	says("recording for 1h")
	if !m.GoesOn(t) {
		_ = cmd.Process.Kill()
		t.Skip("no daemon goes on with the mount of another here")
	}
	says("recording on")
	readAt(t, m, files, "b.bin", 0)
	must(t, cmd.Process.Signal(syscall.SIGINT))
	says("the record has a gap")
	if err := cmd.Wait(); err != nil {
		t.Errorf("interrupted: %v", err)
	}
	r, err := touched.Load(record)
	must(t, err)
	if len(r.Files) != 1 || r.Files[0].Name != "b.bin" || r.Gaps != 1 || r.Complete {
		t.Errorf("%+v", r)
	}
	if sum := warm(t, "--replay", record, m.Path()); sum.Local != int64(len(files["b.bin"])) {
		t.Errorf("replayed: %+v", sum)
	}
}

// Mounts without a cache keep no record, and the commands say so. So do those about no mount, with a wrong file, of two mounts.
func TestNoRecord(t *testing.T) {
	blackbox.NeedFUSE(t)
	s := servers.HTTPSite(t)
	s.PutAll(t, map[string][]byte{"a.bin": sitetest.Tokens(1000)})
	m := servers.Mount(t, s.Source, "")
	record := filepath.Join(suite.NewDir(t), "pile.record")
	must(t, (&touched.Record{Format: 1}).Save(record))
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no cache":        {[]string{"--record", record, m.Path()}, "--cache-dir"},
		"no cache either": {[]string{"--replay", record, m.Path()}, "--cache-dir"},
		"no mount":        {[]string{"--record", record, t.TempDir()}, "no control socket"},
		"no file":         {[]string{"--replay", record + "?", m.Path()}, "no such file"},
		"no record":       {[]string{"--replay", suite.Path(), m.Path()}, "no record of hbmfs"},
		"two":             {[]string{"--replay", record, m.Path(), m.Path()}, "of one mount"},
		"both":            {[]string{"--replay", record, "--record", record, m.Path()}, "exclude each other"},
	} {
		if _, err := suite.Output(t.Context(), append([]string{"warm"}, c.args...)...); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Another user gets no name of a file that it may not read, and brings none.
func TestRecordsKeepSecrets(t *testing.T) {
	blackbox.NeedRoot(t)
	s := servers.HTTPSite(t)
	files := map[string][]byte{"a.bin": sitetest.Tokens(1000)}
	s.PutAll(t, files)
	for umask, sees := range map[string]bool{"0": true, "44": false} {
		m := servers.Mount(t, s.Source, "", "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag, "--allow-other", "--umask", umask)
		m.Compare(t, files)
		dir := t.TempDir()
		must(t, os.Chown(dir, nobody, nobody))
		mine, others := filepath.Join(suite.NewDir(t), "mine"), filepath.Join(dir, "others")
		must(t, os.Chmod(filepath.Dir(dir), 0o755)) // of the testing package
		warm(t, "--record", mine, m.Path())
		as := func(args ...string) touched.Summary {
			t.Helper()
			cmd := exec.CommandContext(t.Context(), suite.Path(), append([]string{"warm", "--json"}, args...)...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			cmd.Dir, cmd.Stderr = "/", os.Stderr
			out, err := cmd.Output()
			must(t, err)
			var sum touched.Summary
			must(t, json.Unmarshal(out, &sum))
			return sum
		}
		as("--record", others, m.Path())
		r, err := touched.Load(others)
		must(t, err)
		if (len(r.Files) == 1 && len(r.Touches) == 1) != sees || !sees && len(r.Files)+len(r.Touches) > 0 {
			t.Errorf("umask %s: %+v", umask, r)
		}
		text, err := os.ReadFile(mine)
		must(t, err)
		must(t, os.WriteFile(others, text, 0o644)) // of its user
		if sum := as("--replay", others, m.Path()); sees != (sum.Local == 2000) || sees == (sum.Denied == 2000) {
			t.Errorf("umask %s: %+v", umask, sum)
		}
	}
}

// nobody is a user without rights.
const nobody = 65534

// A replay goes on where the source hangs for a while, and where the daemon is killed and another goes on.
func TestReplayGoesOn(t *testing.T) {
	blackbox.NeedRoot(t)
	s := servers.HTTPSite(t)
	files := map[string][]byte{"a.bin": sitetest.Tokens(3 * sitetest.Segment), "b.bin": sitetest.Tokens(2 * sitetest.Segment)}
	s.PutAll(t, files)
	first := servers.Mount(t, s.Source, "", "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag)
	first.Compare(t, files)
	record := filepath.Join(suite.NewDir(t), "pile.record")
	warm(t, "--record", record, first.Path())

	m := servers.MountKept(t, s.Source, "--cache-dir", suite.NewDir(t), sitetest.SegmentFlag, "--patience", "8s")
	s.SetFault(func(_ int, a sitetest.Asked) sitetest.Fault {
		if strings.HasSuffix(a.Path, "b.bin") {
			return sitetest.Stall
		}
		return sitetest.None
	})
	done := make(chan touched.Summary, 1)
	go func() {
		out, err := suite.Output(t.Context(), "warm", "--json", "--replay", record, m.Path())
		var sum touched.Summary
		if err != nil || json.Unmarshal(out, &sum) != nil {
			t.Errorf("replay: %v", err)
		}
		done <- sum
	}()
	if !blackbox.Within(patience, func() bool { return m.Status(t).Cache.Segments >= 3 }) {
		t.Fatalf("a.bin does not come: %+v", m.Status(t).Cache)
	}
	if !m.GoesOn(t) {
		t.Skip("no daemon goes on with the mount of another here")
	}
	s.SetFault(nil)
	select {
	case sum := <-done:
		if size := int64(len(files["a.bin"]) + len(files["b.bin"])); sum.Bytes != size || sum.Left > 0 || sum.Local+sum.Fetched != size {
			t.Errorf("%+v", sum)
		}
	case <-time.After(3 * patience):
		t.Error("the replay does not end")
	}
}
