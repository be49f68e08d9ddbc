package check

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
)

// everything is a machine with a secret in every file that could hold one.
func everything() fixture {
	f := server()
	f.stacked("dm-0", "253:0", "nvme0n1p1")
	f["sys/devices/virtual/block/dm-0/dm/uuid"] = "CRYPT-LUKS2-" + strings.Repeat(secret, 5)
	f["sys/devices/virtual/block/dm-0/dm/name"] = "data"
	f["proc/self/mountinfo"] += "40 30 0:50 / /nfs rw - nfs4 " + secret + ":/export rw,addr=" + secret + ",proto=tcp\n41 30 0:51 / /cifs rw - cifs //" + secret + "/share rw,username=" + secret + "\n"
	f["run/secrets/kubernetes.io/serviceaccount/token"] = secret
	f["etc/modprobe.d/x.conf"] = "options other key=" + secret + "\noptions nvme_core multipath=N\n"
	f["etc/hostname"] = secret
	f["proc/self/environ"] = "TOKEN=" + secret
	return f
}

// A recording is there whole, or nothing is.
func TestSave(t *testing.T) {
	dir := t.TempDir()
	file, want := filepath.Join(dir, "facts.tar.zst"), everything().capture(t)
	if err := want.Save(file); err != nil {
		t.Fatal(err)
	}
	if got, err := Open(file); err != nil || !reflect.DeepEqual(Read(got), Read(want)) {
		t.Errorf("it is not what was saved, or %v", err)
	}
	taken := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(taken, "full"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := want.Save(taken); err == nil {
		t.Error("it took the place of a directory")
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 2 {
		t.Errorf("%v, %v are there, want the recording and the directory", err, names)
	}
	if got, err := Open(taken); err != nil || len(got.entries) != 1 {
		t.Errorf("an empty tree: %+v, %v", got, err)
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestRecordingsHaveNoSecrets(t *testing.T) {
	var recording bytes.Buffer
	if err := everything().capture(t).Record(&recording); err != nil {
		t.Fatal(err)
	}
	z, err := zstd.NewReader(bytes.NewReader(recording.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	names := 0
	for r := tar.NewReader(z); ; names++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(h.Name+h.Linkname+string(data), secret) {
			t.Errorf("%s holds a secret: %q", h.Name, data)
		}
	}
	if names < 50 {
		t.Errorf("only %d entries", names)
	}
}

// TestCapturingACaptureChangesNothing unpacks a recording, as people do to look at it, and captures that tree.
func TestCapturingACaptureChangesNothing(t *testing.T) {
	first := everything().capture(t)
	tree := fixture{}
	for name, e := range first.entries {
		switch e.kind {
		case kindLink:
			tree[name] = "->" + e.target
		case kindFile, kindDevice:
			tree[name] = string(e.data)
		case kindDir:
			tree[name+"/"] = ""
		}
	}
	second := tree.captureCopy(t)
	for name, e := range first.entries {
		if e.kind == kindFile && (second.entries[name] == nil || !bytes.Equal(second.entries[name].data, e.data)) {
			t.Errorf("%s: %q became %+v", name, e.data, second.entries[name])
		}
	}
	if a, b := Judge(Read(first), "", 0), Judge(Read(second), "", 0); !reflect.DeepEqual(a, b) {
		t.Errorf("%+v\nbecame %+v", a, b)
	}
}

func TestCaptureOfAStrangeTree(t *testing.T) {
	f := fixture{
		"proc/sys/kernel/osrelease": "->../../../proc/sys/kernel/osrelease", // itself
		"etc/os-release":            "->/../../../../etc/passwd",
		"sys/class/block/loop":      "->loop",
		"dev/nvidia0":               "->/",
		"etc/cufile.json":           "->/usr/cufile.json", // absolute: below the root of the tree
		"usr/cufile.json":           `{"properties": {"use_pci_p2pdma": true}}`,
	}
	dir := f.write(t)
	if err := unix.Mkfifo(filepath.Join(dir, "proc", "cmdline"), 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	s, err := CaptureTree(root.FS())
	if err != nil {
		t.Fatal(err)
	}
	m := Read(s)
	if m.Kernel != "" || m.OS != "" || m.Properties.Properties.P2PDMA == nil {
		t.Errorf("%+v", m)
	}
}

func TestDeniedFilesStayDenied(t *testing.T) {
	s := NewRecording()
	s.put("proc/cmdline", &entry{kind: kindFile, denied: true})
	s.put("dev/nvidia0", &entry{kind: kindDevice})
	var b bytes.Buffer
	if err := s.Record(&b); err != nil {
		t.Fatal(err)
	}
	got, err := Load(&b)
	if err != nil {
		t.Fatal(err)
	}
	if e := got.find("proc/cmdline"); e == nil || !e.denied {
		t.Errorf("%+v", e)
	}
	if e := got.find("dev/nvidia0"); e == nil || e.kind != kindDevice {
		t.Errorf("%+v", e)
	}
}

func TestLoadRefuses(t *testing.T) {
	pack := func(headers ...*tar.Header) []byte {
		var b bytes.Buffer
		z, err := zstd.NewWriter(&b)
		if err != nil {
			t.Fatal(err)
		}
		w := tar.NewWriter(z)
		for _, h := range headers {
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(make([]byte, h.Size)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), z.Close()); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	if _, err := Load(bytes.NewReader(pack(&tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: mostFile + 1}))); !errors.Is(err, errTooMuch) {
		t.Errorf("a large file: %v", err)
	}
	if _, err := Load(strings.NewReader("no recording")); err == nil {
		t.Error("text was taken for a recording")
	}
	s, err := Load(bytes.NewReader(pack(&tar.Header{Name: "../etc/passwd", Typeflag: tar.TypeReg, Size: 1}, &tar.Header{Name: "/abs", Typeflag: tar.TypeReg, Size: 1})))
	if err != nil || s.exists("etc/passwd") || !s.exists("abs") {
		t.Errorf("names that leave the tree: %v %v", err, s)
	}
	whole := pack(&tar.Header{Name: "proc/x", Typeflag: tar.TypeReg, Size: 100})
	for n := range whole[:len(whole)-1] {
		if s, err := Load(bytes.NewReader(whole[:n])); err == nil && n > 0 && s.exists("proc/x") && n < 20 {
			t.Errorf("%d of %d bytes gave a file", n, len(whole))
		}
	}
}

func TestLookAt(t *testing.T) {
	dir := t.TempDir()
	small, large := filepath.Join(dir, "small"), filepath.Join(dir, "large")
	for name, size := range map[string]int{small: 10, large: 1 << 20} {
		if err := os.WriteFile(name, make([]byte, size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := LookAt(context.Background(), dir)
	if err != nil || got.File != large || got.Path != dir || len(got.Places) != 1 || got.HBMFS {
		t.Errorf("a directory: %+v, %v", got, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(large, &st); err != nil || got.Places[0].Dev != devText(st.Dev) {
		t.Errorf("device %q, want %q: %v", got.Places[0].Dev, devText(st.Dev), err)
	}
	empty := t.TempDir()
	if got, err := LookAt(context.Background(), empty); err != nil || got.File != "" || got.Note == "" || len(got.Places) != 1 {
		t.Errorf("an empty directory: %+v, %v", got, err)
	}
	if _, err := LookAt(context.Background(), filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
