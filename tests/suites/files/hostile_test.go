package files_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/mount/mounttest"
)

// damages are what happens to files. Each dataset gets each of them, in a directory of its own.
var damages = map[string]func(content []byte, random *rand.Rand) []byte{
	"half":   func(c []byte, _ *rand.Rand) []byte { return c[:len(c)/2] },
	"cut":    func(c []byte, _ *rand.Rand) []byte { return c[:len(c)-min(1, len(c))] },
	"head":   func(c []byte, _ *rand.Rand) []byte { return c[:min(40, len(c))] },
	"empty":  func([]byte, *rand.Rand) []byte { return nil },
	"longer": func(c []byte, _ *rand.Rand) []byte { return append(c, "more than there was"...) },
	"bytes": func(c []byte, random *rand.Rand) []byte {
		for range 1 + len(c)/50 {
			if len(c) > 0 {
				c[random.IntN(len(c))] = byte(random.Uint32())
			}
		}
		return c
	},
	"huge counts": func(c []byte, random *rand.Rand) []byte { // over the first words, where formats have them
		for range 2 {
			if at := random.IntN(64); at+8 <= len(c) {
				binary.LittleEndian.PutUint64(c[at:], 1<<63-1-uint64(random.IntN(2))<<62)
			}
		}
		return c
	},
}

// Damaged datasets mount, every file is served as it is, every view is bytes or an error, and nothing crashes, hangs
// or takes much memory.
func TestDamagedDatasets(t *testing.T) {
	blackbox.NeedFUSE(t)
	source := suite.NewDir(t)
	datasets := 0
	for name := range mounttest.Goldens(t) {
		for damage, apply := range damages {
			random := rand.New(rand.NewPCG(uint64(len(name)), uint64(len(damage))))
			dir := filepath.Join(source, name+" "+damage)
			must(t, os.CopyFS(dir, os.DirFS(mounttest.Golden(t, name))))
			must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
				if err != nil || e.IsDir() {
					return err
				}
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				return os.WriteFile(path, apply(content, random), 0o644)
			}))
			datasets++
		}
	}
	m := mount(t, source)
	if err := mounttest.CompareTrees(source, m.Point); err != nil {
		t.Error(err)
	}
	began := time.Now()
	read, failed := readViews(t, m)
	t.Logf("%d damaged datasets: %d views read, %d failed, in %v", datasets, read, failed, time.Since(began))
	if blackbox.Ended(m.PID) {
		t.Fatalf("the daemon is gone:\n%s", m.LogText(t))
	}
	if peak := memoryPeak(t, m.PID); peak > 1<<20 {
		t.Errorf("the daemon needed %d KiB for %d small files", peak, datasets)
	}
	r := run(t, "inspect", "--json", source)
	var found inspection
	if err := json.Unmarshal([]byte(r.Stdout), &found); r.Code != 3 || err != nil {
		t.Fatalf("inspect ended with %d, want 3; its JSON: %v\n%s", r.Code, err, r.Stderr)
	}
	checkProblems(t, found)
}

// checkProblems asks that inspect names the files whose damage no format may overlook.
func checkProblems(t *testing.T, found inspection) {
	t.Helper()
	for _, want := range []string{
		"megatron half/", "megatron cut/", "megatron longer/", "megatron-merge half/", "megatron-pieces cut/", "llmc-gpt2 half/", "llmc-gpt2 cut/",
		"mds half/", "mds longer/", "litdata-tokens half/", "npy half/", "npy cut/", "npy-v3 half/", "safetensors half/", "safetensors cut/",
		"safetensors-sharded longer/", "webdataset half/", "arrow half/",
	} {
		named := slices.ContainsFunc(found.Problems, func(p struct {
			Object string `json:"object"`
			Detail string `json:"detail"`
		}) bool {
			return strings.HasPrefix(p.Object, want) && p.Detail != ""
		})
		if !named {
			t.Errorf("inspect finds no problem in %s", want)
		}
	}
}

// readViews reads whatever is in .hbmfs/views and returns how many files could be read, and how many could not.
func readViews(t *testing.T, m *mounted) (read, failed int) {
	t.Helper()
	err := filepath.WalkDir(m.Path(".hbmfs", "views"), func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			if !stale(err) {
				t.Errorf("%s: %v, want EIO or ESTALE", path, err)
			}
			failed++
			return nil
		}
		if e.IsDir() {
			return nil
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) { // a view that is listed before its size was asked for, and cannot be exact
			return nil
		}
		if err != nil || info.Size() > 64<<20 {
			t.Errorf("%s: %v, %v; the sources are a few KiB", path, info, err)
			return nil
		}
		content, err := os.ReadFile(path)
		switch {
		case err == nil && int64(len(content)) == info.Size():
			read++
		case err != nil && stale(err):
			failed++
		default:
			t.Errorf("%s: %d bytes of %d, %v", path, len(content), info.Size(), err)
		}
		return nil
	})
	must(t, err)
	return read, failed
}

// memoryPeak returns the largest resident memory that a process has had, in KiB.
func memoryPeak(t *testing.T, pid int) (kib int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	must(t, err)
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM:") {
			_, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib)
			must(t, err)
			return kib
		}
	}
	t.Fatalf("no VmHWM in\n%s", status)
	return 0
}

// An index that names files outside of the dataset gets nothing of them.
func TestIndexNamesFilesOutside(t *testing.T) {
	blackbox.NeedFUSE(t)
	secret := filepath.Join(suite.NewDir(t), "secret")
	must(t, os.WriteFile(secret, bytes.Repeat([]byte("TOP-SECRET"), 400), 0o644))
	source := suite.NewDir(t)
	for i, name := range []string{"../" + filepath.Base(filepath.Dir(secret)) + "/secret", secret, "inner/../../../../../../../../../" + secret, "link", "./../secret", "a\x00b"} {
		quoted, err := json.Marshal(name)
		must(t, err)
		mds := filepath.Join(source, fmt.Sprintf("mds-%d", i))
		litdata := filepath.Join(source, fmt.Sprintf("litdata-%d", i))
		tensors := filepath.Join(source, fmt.Sprintf("safetensors-%d", i))
		rewriteIndex(t, "mds", "index.json", `"shard.00001.mds"`, string(quoted), mds)
		rewriteIndex(t, "litdata-tokens", "index.json", `"chunk-0-1.bin"`, string(quoted), litdata)
		rewriteIndex(t, "safetensors-sharded", "model.safetensors.index.json", `"model-00002-of-00002.safetensors"`, string(quoted), tensors)
		for _, dir := range []string{mds, litdata, tensors} {
			must(t, os.Symlink(secret, filepath.Join(dir, "link")))
		}
	}
	m := mount(t, source, "--show-views")
	err := filepath.WalkDir(m.Point, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		if bytes.Contains(content, []byte("TOP-SECRET")) {
			t.Errorf("%s shows what lies outside of the dataset", path)
		}
		if err != nil && !stale(err) && !errors.Is(err, unix.ENOENT) {
			t.Errorf("%s: %v", path, err)
		}
		return nil
	})
	must(t, err)
	r := run(t, "inspect", source)
	if r.Code != 3 {
		t.Errorf("inspect ended with %d, want 3: %s", r.Code, r.Stderr)
	}
	for _, dir := range []string{"mds-0", "mds-1", "mds-2", "mds-3", "litdata-0", "litdata-1", "safetensors-0", "safetensors-1"} {
		if !strings.Contains(r.Stdout, "  "+dir+"/") {
			t.Errorf("inspect names no problem in %s:\n%s", dir, r.Stdout)
		}
	}
}

// rewriteIndex copies a golden dataset with one name in its index exchanged.
func rewriteIndex(t *testing.T, dataset, index, old, replacement, dir string) {
	t.Helper()
	must(t, os.CopyFS(dir, os.DirFS(mounttest.Golden(t, dataset))))
	path := filepath.Join(dir, index)
	content, err := os.ReadFile(path)
	must(t, err)
	changed := bytes.ReplaceAll(content, []byte(old), []byte(replacement))
	if bytes.Equal(changed, content) {
		t.Fatalf("%s of %s does not name %s", index, dataset, old)
	}
	must(t, os.WriteFile(path, changed, 0o644))
}
