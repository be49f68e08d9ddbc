package top

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/sys/aside"
	"github.com/hbmfs/hbmfs/layout"
)

// topInstant is when the samples of these tests were taken.
func topInstant() time.Time { return time.Date(2026, 11, 21, 15, 4, 5, 0, time.UTC) }

// sampleOf is an answer of a mount with some numbers in it, which are n times what they are at first.
func sampleOf(point string, n int64) Sample {
	status := map[string]any{
		"pid": 4242, "source": "s3://datasets/pile\x1b[2J", "started": "2026-11-20T08:00:00Z",
		"passthrough": map[string]any{"on": true, "failures": 1, "last_error": "too many open files"},
		"counters": map[string]any{
			"passthrough_opens": 20 * n, "cached_opens": 10 * n, "reads": 100 * n, "spliced_bytes": 4_000_000 * n, "copied_bytes": 2_000 * n,
			"errors": 3, "errors_by_errno": map[string]int64{"EIO": 2, "ESTALE": 1, "ENOSPC": 0},
		},
		"open_files": map[string]int64{"passthrough": 5, "daemon": 2},
		"control": map[string]any{"on": true, "readers": 2, "leases": 7, "clients": []any{
			map[string]any{"name": "train\u202e", "choices": []any{
				map[string]any{"path": "mapped", "reason": "the pages are in memory", "bytes": 20_000_000_000 * n},
				map[string]any{"path": "host", "reason": "", "bytes": 1000},
			}},
		}},
		"origin": map[string]any{"requests": 50 * n, "bytes": 8_000_000 * n, "retries": 2, "latency": []int64{0, 0, 98 * n, 0, 2 * n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		"cache":  map[string]any{"limit": 2_000_000_000_000, "bytes": 500_000_000_000, "pinned": 1_000_000_000, "hits": 10_000 * n, "fetched": 8_000_000 * n, "uncached": 0},
	}
	text, err := json.Marshal(status)
	if err != nil {
		panic(err)
	}
	return Sample{Mount: Mount{Device: "0:" + point, Points: []string{point, "/var/lib/kubelet/pods/1/mount"}, Whole: true}, Answer: aside.Answer{State: aside.OK, Text: text}, At: topInstant().Add(time.Duration(n) * time.Second)}
}

// brokenSamples are mounts that are not well.
func brokenSamples() []Sample {
	at := topInstant().Add(3 * time.Second)
	return []Sample{
		{Mount: Mount{Device: "0:3", Points: []string{"/mnt/stuck"}, Whole: true}, Answer: aside.Answer{State: aside.Silent, Error: "its daemon gave no answer within 2s: is it stopped or stuck?"}, At: at},
		{Mount: Mount{Device: "0:4", Points: []string{"/mnt/dead"}, Whole: true}, Answer: aside.Answer{State: aside.Dead, Error: "its daemon is gone: mount it again, or take it away with hbmfs umount"}, At: at},
		{Mount: Mount{Device: "0:5", Points: []string{"/mnt/odd"}, Whole: true}, Answer: aside.Answer{State: aside.OK, Text: []byte(`{"pid": "many"}`)}, At: at},
		{Mount: Mount{Device: "0:6", Points: []string{"/a/path/that/is/much/longer/than/what/a/table/has/room/for/pile"}, Whole: true}, Answer: aside.Answer{State: aside.OK, Text: []byte(`{"pid": 7}`)}, At: at},
	}
}

// twoSamples are the rows of mounts after two samples, two seconds apart.
func twoSamples() []Row {
	before := Rows([]Sample{sampleOf("/mnt/pile", 1)}, nil)
	return Rows(append(brokenSamples(), sampleOf("/mnt/pile", 3)), before)
}

func TestTopTable(t *testing.T) {
	rows := twoSamples()
	Sort(rows, ByBytes)
	var b strings.Builder
	if err := WriteTable(&b, rows, 0); err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		b.WriteByte('\n')
		if err := WriteDetails(&b, &rows[i]); err != nil {
			t.Fatal(err)
		}
	}
	golden := filepath.Join("testdata", "top.txt")
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("the table is\n%s\nwant (%s)\n%s", b.String(), golden, want)
	}
}

func TestTopRates(t *testing.T) {
	rows := twoSamples()
	r := rows[len(rows)-1]
	if r.Rates == nil || r.Answers == nil {
		t.Fatalf("no rates after two samples: %+v", r)
	}
	for what, got := range map[string][2]float64{
		"seconds":           {r.Rates.Seconds, 2},
		"passthrough opens": {r.Rates.PassthroughOpens, 20},
		"daemon opens":      {r.Rates.DaemonOpens, 10},
		"spliced":           {r.Rates.SplicedBytes, 4_000_000},
		"readers":           {r.Rates.ReaderBytes, 20_000_000_000},
		"origin":            {r.Rates.OriginBytes, 8_000_000},
		"hits":              {r.Rates.CacheHitBytes, 10_000},
		"errors":            {r.Rates.Errors, 0},
		"half":              {r.Answers.P50, 0.004},
		"99%":               {r.Answers.P99, 0.016},
		"slowest":           {r.Answers.Slowest, 0.016},
		"answers":           {float64(r.Answers.Count), 200},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: %v, want %v", what, got[0], got[1])
		}
	}
	for _, r := range rows[:len(rows)-1] {
		if r.Rates != nil {
			t.Errorf("%s has rates after one sample", r.MountPoint)
		}
	}
	again := sampleOf("/mnt/pile", 4)
	again.Text = []byte(strings.Replace(string(again.Text), "4242", "4243", 1))
	if r := Rows([]Sample{again}, rows)[0]; r.Rates != nil || r.State != Degraded {
		t.Errorf("rates across a restart of the daemon: %+v", r)
	}
}

func TestTopOrder(t *testing.T) {
	rows := twoSamples()
	for by, first := range map[string]string{ByName: "/a/path", ByBytes: "/mnt/pile", ByErrors: "/mnt/pile"} {
		slices.Reverse(rows)
		Sort(rows, by)
		if !strings.HasPrefix(rows[0].MountPoint, first) {
			t.Errorf("by %s the first is %s, want %s", by, rows[0].MountPoint, first)
		}
	}
}

func TestScreen(t *testing.T) {
	s := &Screen{Interval: time.Hour, By: ByName}
	if !strings.Contains(s.text(), "asking") {
		t.Errorf("at first it shows %q", s.text())
	}
	press := func(keys ...string) {
		for _, k := range keys {
			if s.press(k) {
				t.Errorf("%q quits", k)
			}
		}
	}
	s.show(taken{samples: append(brokenSamples(), sampleOf("/mnt/pile", 1)), at: topInstant()})
	s.width, s.height = 200, 40
	if text := s.text(); !strings.Contains(text, "mounts: 5, not ok: 4") || !strings.Contains(text, reverse+"…") {
		t.Errorf("the screen is\n%s", text)
	}
	const down = "\x1b[B"
	press(down, "\x1bOB", "k", down, "j", down, down, down)
	if s.selected != "/mnt/stuck" || !strings.Contains(s.text(), "is it stopped or stuck?") {
		t.Errorf("at the end of the list %s is selected:\n%s", s.selected, s.text())
	}
	press("s")
	if s.By != ByBytes || s.rows[0].MountPoint != "/mnt/pile" && s.rows[0].Bytes() > 0 || s.selected != "/mnt/stuck" {
		t.Errorf("after s: by %s, %s selected", s.By, s.selected)
	}
	s.width, s.height = 80, 24
	s.selected = "/mnt/pile"
	for i, line := range strings.Split(strings.TrimSpace(strings.NewReplacer(reverse, "", plain, "").Replace(s.text())), "\n") {
		if utf8.RuneCountInString(strings.TrimRight(line, " ")) > 80 || i >= 24 {
			t.Errorf("80 x 24 have no room for line %d: %q", i, line)
		}
	}
	for _, want := range []string{"q quits, s sorts", "STATE", "READERS/S", "ERRORS", "degraded", "the log names the files"} {
		if !strings.Contains(s.text(), want) {
			t.Errorf("on 80 x 24 there is no %q:\n%s", want, s.text())
		}
	}
	s.selected = "/mnt/stuck"
	s.width, s.height = 20, 3
	if text := s.text(); strings.Count(text, "/mnt/") != 2 || !strings.Contains(text, reverse+"/mnt/stuck") { // its line, its details
		t.Errorf("a small screen shows\n%s", text)
	}
	var drawn strings.Builder
	if s.draw(&drawn); strings.Count(drawn.String(), "\n") != 2 {
		t.Errorf("3 lines have room for\n%q", drawn.String())
	}
	s.show(taken{samples: []Sample{sampleOf("/mnt/pile", 2)}, at: topInstant()})
	if s.selected != "/mnt/pile" || !strings.Contains(s.text(), "20.0 GB") {
		t.Errorf("after the selected mount went, %s is selected:\n%s", s.selected, s.text())
	}
	if strings.ContainsAny(strings.ReplaceAll(strings.ReplaceAll(s.text(), reverse, ""), plain, ""), "\x1b\u202e") {
		t.Errorf("what others named gets to the terminal:\n%q", s.text())
	}
	s.show(taken{at: topInstant()})
	if text := s.text(); !strings.Contains(text, "no hbmfs is mounted") {
		t.Errorf("without mounts it shows %q", text)
	}
	for _, k := range []string{"q", "\x1b", "\x03"} {
		if !s.press(k) {
			t.Errorf("%q does not quit", k)
		}
	}
}

func TestKeys(t *testing.T) {
	in, typed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }() // nothing is lost
	keys := make(chan string)
	go readKeys(t.Context(), in, keys)
	if _, err := typed.WriteString("jk\x1b[A\x1bOBq\x1b"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"j", "k", "\x1b[A", "\x1bOB", "q", "\x1b"} {
		if got := <-keys; got != want {
			t.Errorf("the key is %q, want %q", got, want)
		}
	}
	if err := typed.Close(); err != nil {
		t.Fatal(err)
	}
	if _, more := <-keys; more {
		t.Error("a terminal that is gone has more keys")
	}
}

func TestTopMetrics(t *testing.T) {
	page := "# HELP hbmfs_a_total As.\n# TYPE hbmfs_a_total counter\nhbmfs_a_total 1\n# HELP hbmfs_b Bs.\n# TYPE hbmfs_b gauge\nhbmfs_b{x=\"} 1\"} 2\n# HELP hbmfs_c Cs.\n# TYPE hbmfs_c gauge\n"
	var b strings.Builder
	err := WriteMetrics(&b, []Sample{
		{Mount: Mount{Points: []string{`/mnt/"a"`}}, Answer: aside.Answer{State: aside.OK, Text: []byte(page)}},
		{Mount: Mount{Points: []string{"/mnt/b"}}, Answer: aside.Answer{State: aside.OK, Text: []byte(strings.ReplaceAll(page, "As", "All"))}},
		{Mount: Mount{Points: []string{"/mnt/c"}}, Answer: aside.Answer{State: aside.Dead}},
	})
	want := `# HELP hbmfs_up 1 where the daemon of a mount answers.
# TYPE hbmfs_up gauge
hbmfs_up{mount="/mnt/\"a\""} 1
hbmfs_up{mount="/mnt/b"} 1
hbmfs_up{mount="/mnt/c"} 0
# HELP hbmfs_a_total As.
# TYPE hbmfs_a_total counter
hbmfs_a_total{mount="/mnt/\"a\""} 1
hbmfs_a_total{mount="/mnt/b"} 1
# HELP hbmfs_b Bs.
# TYPE hbmfs_b gauge
hbmfs_b{mount="/mnt/\"a\"",x="} 1"} 2
hbmfs_b{mount="/mnt/b",x="} 1"} 2
`
	if err != nil || b.String() != want {
		t.Errorf("metrics of all mounts are (%v)\n%s\nwant\n%s", err, b.String(), want)
	}
}

func TestStatusFitsTheTerminal(t *testing.T) {
	r := Row{MountPoint: "/m", Told: &status.Status{Notes: []string{strings.Repeat("word ", 60)}}}
	var wide, narrow strings.Builder
	if err := errors.Join(WriteStatus(&wide, &r, 0), WriteStatus(&narrow, &r, 80)); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(narrow.String()) {
		if len(strings.TrimRight(line, " \n")) > 80 {
			t.Errorf("in 80 columns a line has %d: %q", len(line), line)
		}
	}
	if one, other := strings.Join(strings.Fields(wide.String()), " "), strings.Join(strings.Fields(narrow.String()), " "); one != other {
		t.Errorf("in 80 columns the status has other words: %q, not %q", other, one)
	}
}

func TestStatusSaysHowMuchMovedByWhichPath(t *testing.T) {
	r := Rows([]Sample{sampleOf("/mnt/pile", 1)}, nil)[0]
	r.Told.Sets = []status.Set{{Format: "webdataset", Shards: 3, Tokens: -1, Samples: 150}, {Format: "npy", Dir: "npy", DType: layout.U16, Shards: 4, Tokens: 400_000, Samples: -1}}
	var b strings.Builder
	if err := WriteStatus(&b, &r, 0); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{": 20.0 GB mapped (the pages are in memory)\n", ": 1.0 kB host\n", ".: webdataset, 3 shards, 150 samples\n", "npy: npy u16, 4 shards, 400,000 tokens\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the status lacks %q:\n%s", want, b.String())
		}
	}
}

// TestHolderWithoutANumber: systemd holds the mounts of its services, and its number is not told.
func TestHolderWithoutANumber(t *testing.T) {
	for _, count := range []int64{0, 2} {
		var b strings.Builder
		writeHolder(&b, &status.Handover{Holder: "systemd", Count: count})
		if !strings.Contains(b.String(), "systemd keeps the mount") {
			t.Errorf("%q", b.String())
		}
	}
}
