package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// TestVerifyNamesEachDamage harms files in several ways: each is found, at its place, and nothing else.
func TestVerifyNamesEachDamage(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "step")
	d, err := Begin(t.Context(), at, Part{0, 1})
	must(t, err)
	sizes := map[string]int{"whole": 2*Chunk + 1, "flipped": 3*Chunk + 5, "sub/missing": 10, "longer": 10, "shorter": 10, "link": 10, "pipe": 10, "directory": 0}
	must(t, d.Publish(t.Context(), written(t, d.Dir(), sizes)))
	in := func(name string) string { return filepath.Join(at, name) }
	f, err := os.OpenFile(in("flipped"), os.O_RDWR, 0)
	must(t, err)
	var one [1]byte
	for _, off := range []int64{0, Chunk - 1, 2 * Chunk, 3*Chunk + 4} {
		_, err := f.ReadAt(one[:], off)
		must(t, err)
		one[0] ^= 0x10
		_, err = f.WriteAt(one[:], off)
		must(t, err)
	}
	must(t, f.Close())
	must(t, errors.Join(os.Remove(in("sub/missing")), os.Truncate(in("longer"), 11), os.Truncate(in("shorter"), 9),
		os.Rename(in("link"), filepath.Join(dir, "link")), os.Symlink("../link", in("link")), os.Remove(in("pipe")), os.Symlink("/dev/zero", in("pipe")),
		os.Remove(in("directory")), os.Mkdir(in("directory"), 0o755)))
	var calls, done, total atomic.Int64
	report, err := Verify(t.Context(), at, VerifyOptions{Threads: 3, Progress: func(n, of int64) {
		calls.Add(1)
		done.Store(max(done.Load(), n))
		total.Store(of)
	}})
	must(t, err)
	var said []string
	for i := range report.Damage {
		if !errors.Is(report.Damage[i].Err, ErrDamaged) || report.Damage[i].Why != report.Damage[i].Err.Error() {
			t.Errorf("%+v", report.Damage[i])
		}
		said = append(said, report.Damage[i].String())
	}
	want := []string{
		`file "directory": it is no regular file`,
		fmt.Sprintf(`file "flipped", chunk 0, %d bytes from 0 on: crc32c is `, Chunk),
		fmt.Sprintf(`file "flipped", chunk 2, %d bytes from %d on: crc32c is `, Chunk, 2*Chunk),
		fmt.Sprintf(`file "flipped", chunk 3, 5 bytes from %d on: crc32c is `, 3*Chunk),
		`file "link": it is no regular file`, `file "longer": it has 11 bytes, 10 were published`, `file "pipe": it is no regular file`,
		`file "shorter": it has 9 bytes, 10 were published`, `file "sub/missing": it is missing`,
	}
	if len(said) != len(want) || slices.ContainsFunc(want, func(w string) bool {
		return !slices.ContainsFunc(said, func(s string) bool { return strings.HasPrefix(s, w) })
	}) {
		t.Errorf("it says\n%s\nwant\n%s", strings.Join(said, "\n"), strings.Join(want, "\n"))
	}
	size := int64(5*Chunk + 6 + 50)
	if report.Damaged != len(want) || report.Files != len(sizes) || report.Bytes != 3*Chunk+1 || done.Load() != size || total.Load() != size || calls.Load() < 10 {
		t.Errorf("%+v; %d of %d in %d calls", report, done.Load(), total.Load(), calls.Load())
	}
	all, err := List(dir)
	if err != nil || len(all) != 1 || all[0].State != Damaged || !strings.HasPrefix(all[0].Why, `file "`) {
		t.Errorf("%+v, %v", all, err)
	}
	must(t, Remove(t.Context(), at)) // a damaged one, too
	if text, err := os.ReadFile(filepath.Join(dir, "link")); err != nil || len(text) != 10 {
		t.Errorf("a link was followed: %v", err)
	}
}

func TestVerifyOfWhatIsNoCheckpoint(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "else"), 0o755))
	publish(t, filepath.Join(dir, "step"))
	must(t, os.Symlink("step", filepath.Join(dir, "latest")))
	for path, want := range map[string]error{"else": ErrNone, "none": fs.ErrNotExist, ".step": ErrInvalid} {
		if _, err := Verify(t.Context(), filepath.Join(dir, path), VerifyOptions{}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	if _, err := Verify(t.Context(), filepath.Join(dir, "latest"), VerifyOptions{}); err == nil || !strings.Contains(err.Error(), "is no directory") {
		t.Errorf("a link: %v", err)
	}
	sound(t, dir, "step")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Verify(ctx, filepath.Join(dir, "step"), VerifyOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	manifest := filepath.Join(dir, "step", ManifestName)
	must(t, os.Truncate(manifest, mostManifest+1))
	report, err := Verify(t.Context(), filepath.Join(dir, "step"), VerifyOptions{})
	if err != nil || report.Damaged != 1 || report.Damage[0].File != ManifestName || !strings.Contains(report.Damage[0].Why, "more than any") {
		t.Errorf("%+v, %v", report, err)
	}
}

// A checkpoint may be copied and renamed by other programs. A copy that is not finished is none.
func TestCopiesAndRenamedOnes(t *testing.T) {
	dir := t.TempDir()
	publish(t, filepath.Join(dir, "step_1"))
	must(t, os.CopyFS(filepath.Join(dir, "copy"), os.DirFS(filepath.Join(dir, "step_1"))))
	must(t, os.Rename(filepath.Join(dir, "step_1"), filepath.Join(dir, "best")))
	sound(t, dir, "best", "copy")
	must(t, os.Truncate(filepath.Join(dir, "copy", "sub", "deep", "c"), Chunk))
	sound(t, dir, "best")
}

func TestNaturalOrder(t *testing.T) {
	want := []string{"", "0", "00", "01", "1", "2", "10", "99999999999999999999998", "99999999999999999999999", "a", "a1", "a1b", "a2", "a10", "a10b2", "a10b10", "b", "step_9", "step_10", "step_10_x"}
	for i, a := range want {
		for j, b := range want {
			if got := natural(a, b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("natural(%q, %q) is %d", a, b, got)
			}
		}
	}
}
