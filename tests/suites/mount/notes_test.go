package mount_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// noted mounts, looks at what the command writes, and unmounts. Scripts find one line on standard output, whatever is wrong. The command
// waits for the formats only a moment. On a busy machine that can be too short, and is tried again; where the last attempt is no better, whole
// is false, and stderr may lack what is in notes.
func noted(t *testing.T, source, point string, flags ...string) (stderr string, notes []string, whole bool) {
	t.Helper()
	for range 3 {
		stderr = commanded(t, source, point, flags...)
		notes = notesOf(t, point)
		var lines []string
		whole = true
		for line := range strings.Lines(stderr) {
			if strings.Contains(line, "still being recognized") {
				whole = false
				continue
			}
			lines = append(lines, line)
		}
		if stderr = strings.Join(lines, ""); whole {
			break
		}
	}
	return stderr, notes, whole
}

// commanded runs hbmfs mount to its end and returns what it says on standard error.
func commanded(t *testing.T, source, point string, flags ...string) (stderr string) {
	t.Helper()
	blackbox.NeedFUSE(t)
	log := filepath.Join(suite.NewDir(t), "log")
	r := run(t, append(append([]string{"mount", "--log-file", log}, flags...), source, point)...)
	if r.Code != 0 || strings.Count(r.Stdout, "\n") != 1 || !strings.Contains(r.Stdout, "is mounted on") {
		t.Fatalf("exit code %d: %q, %q", r.Code, r.Stdout, r.Stderr)
	}
	return r.Stderr
}

// notesOf waits until the formats are recognized, returns the notes of the status, and unmounts.
func notesOf(t *testing.T, point string) []string {
	t.Helper()
	m := suite.At(point)
	defer func() { must(t, m.Close()) }()
	var s struct {
		Indexing bool     `json:"indexing"`
		Notes    []string `json:"notes"`
	}
	if !blackbox.Within(patience, func() bool {
		text, err := os.ReadFile(filepath.Join(point, ".hbmfs", "status"))
		must(t, err)
		must(t, json.Unmarshal(text, &s))
		return !s.Indexing
	}) {
		t.Error("the formats are still being recognized")
	}
	if len(s.Notes) > 0 {
		if shown := run(t, "top", "--once", "--interval", "1ms", "--timeout", "10s"); !strings.Contains(shown.Stdout, "note") {
			t.Errorf("top does not show notes:\n%s", shown.Stdout)
		}
	}
	return s.Notes
}

// The command and the status name the faults of a mount: one line each, and nothing where nothing is wrong.
func TestMountSaysWhatIsWrong(t *testing.T) {
	sound := suite.NewDir(t)
	must(t, os.CopyFS(sound, os.DirFS(mounttest.Golden(t, "nanogpt"))))
	broken := suite.NewDir(t)
	must(t, os.CopyFS(broken, os.DirFS(mounttest.Golden(t, "megatron"))))
	index, err := filepath.Glob(filepath.Join(broken, "*.bin"))
	must(t, err)
	must(t, os.Truncate(index[0], 10))
	outside := suite.NewDir(t)
	must(t, os.CopyFS(outside, os.DirFS(mounttest.Golden(t, "nanogpt"))))
	must(t, os.Symlink("/etc", filepath.Join(outside, "linked")))
	full := suite.NewDir(t)
	mounttest.WriteFiles(t, full, map[string]string{"forgotten.txt": "1"})
	shard := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, q, "", time.Unix(1, 0), bytes.NewReader(make([]byte, 10_000)))
	}))
	defer shard.Close()
	unknown := suite.NewDir(t)
	noise := make([]byte, 100_000)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise) // which never fails
	mounttest.WriteFiles(t, unknown, map[string]string{"train.bin": string(noise)})
	inPlace := suite.NewDir(t)
	must(t, os.CopyFS(inPlace, os.DirFS(mounttest.Golden(t, "nanogpt"))))
	for what, c := range map[string]struct {
		source, point string
		flags         []string
		says          string
	}{
		"a sound dataset":  {sound, suite.NewDir(t), []string{"--dtype", "uint16"}, ""},
		"in place":         {inPlace, inPlace, []string{"--dtype", "<u2"}, ""},
		"a guessed type":   {sound, suite.NewDir(t), nil, "train.bin: no header, so its type (and of 1 more) was guessed from the values: uint16; hbmfs mount --dtype sets it"},
		"no type":          {unknown, suite.NewDir(t), nil, "train.bin: it has no header, and its values do not show their type: if they are tokens, give it, as in --dtype uint16"},
		"a damaged shard":  {broken, suite.NewDir(t), nil, filepath.Base(index[0])},
		"a link outside":   {outside, suite.NewDir(t), nil, "linked: "},
		"an empty source":  {suite.NewDir(t), suite.NewDir(t), nil, "has no files"},
		"a full directory": {sound, full, nil, `"forgotten.txt"`},
		"a useless cache":  {sound, suite.NewDir(t), []string{"--cache-dir", suite.NewDir(t)}, "--cache-dir is not used"},
		"a size of none":   {sound, suite.NewDir(t), []string{"--cache-size", "1GiB"}, "--cache-size has no effect without --cache-dir"},
		"a useless way":    {sound, suite.NewDir(t), []string{"--through", "http://cache:1"}, "--through has no effect"},
		"no cache":         {shard.URL + "/shard.dat", suite.NewDir(t), nil, "there is no --cache-dir"},
	} {
		said, notes, whole := noted(t, c.source, c.point, c.flags...)
		if c.says == "" {
			if said != "" || len(notes) != 0 {
				t.Errorf("%s: the command says %q, the status %q, and nothing is wrong", what, said, notes)
			}
			continue
		}
		lines := strings.Split(strings.TrimSuffix(said, "\n"), "\n")
		if whole && (!strings.HasPrefix(said, "hbmfs: ") || !strings.Contains(said, c.says) || len(lines) > 2) {
			t.Errorf("%s: the command says %q, want a line or two with %q", what, said, c.says)
		}
		if !strings.Contains(strings.Join(notes, "\n"), c.says) {
			t.Errorf("%s: the status says %q, want %q", what, notes, c.says)
		}
	}
}

// A thousand things that are wrong are a few lines, and one that says where the others are. Names cannot play with a terminal.
func TestMountSaysTheFirstThingsThatAreWrong(t *testing.T) {
	source := suite.NewDir(t)
	for i := range 1000 {
		must(t, os.Symlink("/etc", filepath.Join(source, fmt.Sprintf("link-%03d\x1b[31m", i))))
	}
	mounttest.WriteFiles(t, source, map[string]string{"shard.dat": "1"})
	said, notes, whole := noted(t, source, suite.NewDir(t))
	if n := strings.Count(said, "\n"); len(notes) != 11 || strings.Contains(said, "\x1b") ||
		whole && (n != 11 || !strings.Contains(said, "and 990 more: hbmfs inspect "+source)) {
		t.Errorf("%d lines, and %d notes: %q", n, len(notes), said)
	}
}

// A mount whose formats take long to recognize is there as soon as others, and says that it does not know all.
func TestMountDoesNotWaitForRecognition(t *testing.T) {
	release := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("ETag", `"1"`)
		if q.Method == http.MethodGet && q.Header.Get("Range") != "bytes=0-0" {
			<-release
		}
		http.ServeContent(w, q, "", time.Unix(1, 0), bytes.NewReader(make([]byte, 10_000)))
	}))
	defer slow.Close()
	began, point := time.Now(), suite.NewDir(t)
	said := commanded(t, slow.URL+"/shard.dat", point)
	close(release)
	notesOf(t, point)
	if !strings.Contains(said, "still being recognized") || !strings.Contains(said, ".hbmfs/status") {
		t.Errorf("the command says %q after %v", said, time.Since(began))
	}
}

// The notes of a mount in the foreground are in its log.
func TestMountInTheForegroundLogsWhatIsWrong(t *testing.T) {
	blackbox.NeedFUSE(t)
	point := suite.NewDir(t)
	b := mounttest.Begin(t, suite, suite.Command(t.Context(), "mount", "-f", suite.NewDir(t), point))
	if !blackbox.Within(patience, func() bool { return strings.Contains(b.Said(t), "msg=mounted") }) {
		t.Errorf("not mounted: %q", b.Said(t))
	}
	if said := b.Said(t); !strings.Contains(said, "level=WARN") || !strings.Contains(said, "has no files") {
		t.Errorf("the log has no word of an empty source:\n%s", said)
	}
	must(t, b.Process.Signal(os.Interrupt))
	b.End(t)
	mounttest.WantMounted(t, point, false)
}

// A flag that an ordinary user cannot have is said to have no effect.
func TestReadAheadOfAnOrdinaryUser(t *testing.T) {
	blackbox.NeedRoot(t)
	mounttest.MakeFUSEPublic(t)
	if _, err := exec.LookPath("fusermount3"); err != nil {
		t.Skip("needs fusermount3")
	}
	point, logs := suite.NewDir(t), suite.NewDir(t)
	must(t, errors.Join(os.Chown(point, nobody, nobody), os.Chown(logs, nobody, nobody)))
	r := suite.RunAsNobody(t, "mount", "--read-ahead=1048576", "--dtype=u16", "--log-file", filepath.Join(logs, "log"), mounttest.Golden(t, "nanogpt"), point)
	defer func() { must(t, suite.At(point).Close()) }()
	if r.Code != 0 || r.Stderr != "hbmfs: --read-ahead has no effect: only root can set it\n" {
		t.Errorf("exit code %d, and it says %q", r.Code, r.Stderr)
	}
}

// A web server that sends whole files only cannot serve a mount: the command says so, and there is none.
func TestMountOfAServerWithoutRanges(t *testing.T) {
	blackbox.NeedFUSE(t)
	whole := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { // as Python's http.server
		w.Header().Set("Last-Modified", "Thu, 01 Jan 1970 00:00:01 GMT")
		w.Header().Set("Content-Length", "10000")
		if q.Method == http.MethodGet {
			_, _ = w.Write(make([]byte, 10_000)) // the client may be gone
		}
	}))
	defer whole.Close()
	point := suite.NewDir(t)
	r := run(t, "mount", "--log-file", filepath.Join(suite.NewDir(t), "log"), whole.URL+"/train.bin", point)
	if r.Code == 0 || !strings.Contains(r.Stderr, "the server does not serve ranges") {
		t.Errorf("exit code %d: %q", r.Code, r.Stderr)
	}
	if entries, err := os.ReadDir(point); err != nil || len(entries) != 0 {
		t.Errorf("the mount point has %v (%v)", entries, err)
	}
}

// The status counts the views that there are. Headerless tokens have three of six: no documents are known.
func TestStatusCountsTheViewsThatExist(t *testing.T) {
	point := suite.NewDir(t)
	commanded(t, mounttest.Golden(t, "nanogpt"), point)
	defer func() { must(t, suite.At(point).Close()) }()
	var said string
	if !blackbox.Within(patience, func() bool {
		said = run(t, "status", point).Stdout
		return strings.Contains(said, "; 6 views\n")
	}) {
		t.Errorf("the status has no word of 6 views:\n%s", said)
	}
	if !strings.Contains(said, "tokens u16 (guessed), ") {
		t.Errorf("the status does not say that the type was guessed:\n%s", said)
	}
	views := 0
	must(t, filepath.WalkDir(filepath.Join(point, ".hbmfs", "views"), func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			views++
		}
		return err
	}))
	if views != 6 {
		t.Errorf("%d views are listed", views)
	}
}
