package roots

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/internal/volume/kv"
	"github.com/hbmfs/hbmfs/tests/blackbox"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestCheck(t *testing.T) {
	if manifest != checkpoint.ManifestName || drainState != checkpoint.DrainState {
		t.Error("names on the disk are others by now")
	}
	top := t.TempDir()
	in := func(name string) string { return filepath.Join(top, name) }
	outside := t.TempDir()
	must(t, errors.Join(
		os.MkdirAll(in("team/run/step-1"), 0o755), os.WriteFile(in("team/run/step-1/"+manifest), nil, 0o644), os.Mkdir(in("team/run/"+drainState), 0o755),
		os.MkdirAll(in("plain/step-1"), 0o755), os.WriteFile(in("plain/step-1/"+manifest), nil, 0o644),
		os.Symlink(outside, in("team/link")), os.WriteFile(in("team/file"), nil, 0o644), os.MkdirAll(in("nested/top"), 0o755),
	))
	places := Checkpoints([]string{top, in("nested/top")})
	for _, c := range []struct{ dir, namespace, want string }{
		{in("team/new"), "team", ""},
		{in("team/new/deeper"), "team", ""},
		{in("team/run"), "team", ""},
		{in("other"), "", ""},
		{in("nested/top/team/x"), "team", ""},
		{in("other/run"), "team", "below its namespace's directory"},
		{in("team"), "team", "below its namespace's directory"},
		{in("teams/run"), "team", "below its namespace's directory"},
		{in("nested/top/other/x"), "nested", "below its namespace's directory"},
		{top, "", "--allow-checkpoints"},
		{top + "-beside", "", "--allow-checkpoints"},
		{outside, "", "--allow-checkpoints"},
		{"/", "", "--allow-checkpoints"},
		{in("team/../../etc"), "", "--allow-checkpoints"},
		{in("team/link"), "team", "a link"},
		{in("team/link/run"), "team", "a link"},
		{in("team/file"), "team", "no directory"},
		{in("team/.hidden"), "team", "begins with a dot"},
		{in("team/run/.step.hbmfs.tmp/x"), "team", "begins with a dot"},
		{in("team/run/step-1"), "team", "a checkpoint volume's directory"},
		{in("plain/step-1"), "", "published checkpoint"},
		{in("team/run/step-1/x"), "team", "checkpoint"},
		{in("team/run/new"), "team", "a checkpoint volume's directory"},
	} {
		err := places.Check(c.dir, c.namespace)
		if c.want == "" && err != nil || c.want != "" && !strings.Contains(status.Convert(err).Message(), c.want) {
			t.Errorf("%s of %q: %v, want %q", c.dir, c.namespace, err, c.want)
		}
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside there is %v, %v", entries, err)
	}
	if _, err := os.Stat(in("team/new")); err == nil {
		t.Error("a check has made a directory")
	}
}

func TestMake(t *testing.T) {
	blackbox.NeedRoot(t)
	top := t.TempDir()
	dir := filepath.Join(top, "team/run")
	stat := func() (st unix.Stat_t) {
		must(t, unix.Stat(dir, &st))
		return st
	}
	places := Checkpoints([]string{top})
	must(t, places.Make(dir, ""))
	if st := stat(); st.Mode != unix.S_IFDIR|0o755 || st.Gid != 0 {
		t.Errorf("without a group the directory has mode %o and group %d", st.Mode, st.Gid)
	}
	for _, group := range []string{"2000", "2000", "3000"} {
		must(t, places.Make(dir, group))
		if st := stat(); st.Mode != unix.S_IFDIR|unix.S_ISGID|0o775 || st.Uid != 0 || (st.Gid != 2000) != (group == "3000") {
			t.Errorf("for group %s the directory has mode %o, user %d and group %d", group, st.Mode, st.Uid, st.Gid)
		}
	}
	must(t, os.Chmod(dir, 0o700))
	must(t, places.Make(dir, "3000"))
	if st := stat(); st.Mode != unix.S_IFDIR|unix.S_ISGID|0o770 {
		t.Errorf("a directory that others could not read has mode %o", st.Mode)
	}
	var around unix.Stat_t
	must(t, unix.Stat(filepath.Dir(dir), &around))
	if around.Mode != unix.S_IFDIR|0o755 || around.Gid != 0 {
		t.Errorf("the directory around it has mode %o and group %d", around.Mode, around.Gid)
	}
	must(t, os.Symlink("/etc", filepath.Join(top, "link")))
	if err := places.Make(filepath.Join(top, "link", "hbmfs-test"), ""); err == nil {
		t.Error("a link was followed")
	}
}

func TestMeeting(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"/a/b", "/a/b/", true}, {"/a", "/a/b", true}, {"/a/b", "/a", true}, {"/a/b", "/a/bc", false}, {"/a/b", "/a/c", false}} {
		if Overlap(c.a, c.b) != c.want {
			t.Errorf("Overlap(%s, %s) is %v", c.a, c.b, !c.want)
		}
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"s3://b/run", "s3://b/run?region=x", true}, {"s3://b/run", "s3://b", true}, {"s3://b/run", "s3://b/run-2", false}, {"s3://b/run", "s3://c/run", false},
		{"s3://b/run?endpoint=http://x/", "s3://b/run?region=r&endpoint=http://x", true}, {"s3://b/run?endpoint=http://x", "s3://b/run?endpoint=http://y", false},
		{"", "s3://b", false}, {"", "", false},
	} {
		if SameDestination(c.a, c.b) != c.want {
			t.Errorf("SameDestination(%s, %s) is %v", c.a, c.b, !c.want)
		}
	}
}

func TestKV(t *testing.T) {
	top := t.TempDir()
	in := func(name string) string { return filepath.Join(top, name) }
	s, err := kv.New(kv.Options{Directory: top, Size: 1 << 20, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	must(t, errors.Join(s.Load(), s.Close()))
	if _, err := os.Stat(in(kvLock)); err != nil {
		t.Error("names on the disk are others by now")
	}
	must(t, errors.Join(os.MkdirAll(in("team/llama/fp8"), 0o755), os.Rename(in(kvLock), in("team/llama/"+kvLock))))
	places := KV([]string{top})
	for _, c := range []struct{ dir, namespace, want string }{
		{in("team/llama"), "team", ""},
		{in("team/new"), "team", ""},
		{in("team/llama/fp8"), "team", "a KV volume's directory"},
		{in("other/x"), "team", "an inline KV volume lies below its namespace's directory: write " + in("team/NAME")},
		{"/etc", "", "volume attribute kv=/etc: KV volumes lie below the directories of hbmfs-csi host --allow-kv only"},
	} {
		err := places.Check(c.dir, c.namespace)
		if c.want == "" && err != nil || c.want != "" && !strings.Contains(status.Convert(err).Message(), c.want) {
			t.Errorf("%s of %q: %v, want %q", c.dir, c.namespace, err, c.want)
		}
	}
}
