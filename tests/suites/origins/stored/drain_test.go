package stored_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/minio/minio-go/v7"

	"github.com/hbmfs/hbmfs/internal/observe/status"
	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// part is that of an upload in parts.
const part = 32 << 20

// drainedFiles are the files of a checkpoint, by name. Of two shards, one is so large, and the other by a quarter and five bytes larger.
func drainedFiles(seed byte, shard int) map[string][]byte {
	files := map[string][]byte{}
	for name, size := range map[string]int{"empty": 0, "config.json": 300, "shards/part": shard, "shards/large": shard + shard/4 + 5, ".metadata": 1000} {
		files[name] = make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{seed, byte(size)}).Read(files[name])
	}
	return files
}

// publish makes a checkpoint.
func publish(t testing.TB, dir, name string, files map[string][]byte) {
	t.Helper()
	d, err := checkpoint.Begin(t.Context(), filepath.Join(dir, name), checkpoint.Part{Of: 1})
	must(t, err)
	var list []checkpoint.File
	for file, data := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(d.Dir(), file)), 0o755))
		must(t, os.WriteFile(filepath.Join(d.Dir(), file), data, 0o644))
		f := checkpoint.File{Name: file, Size: int64(len(data))}
		for chunk := range slices.Chunk(data, checkpoint.Chunk) {
			f.Sums = append(f.Sums, crc32.Checksum(chunk, crc32.MakeTable(crc32.Castagnoli)))
		}
		list = append(list, f)
	}
	must(t, d.Publish(t.Context(), list))
}

// showsCheckpoints compares a mount of a destination with these checkpoints, as readers and hbmfs see them.
func showsCheckpoints(t *testing.T, m *sitetest.Mounted, want map[string]map[string][]byte) {
	t.Helper()
	entries, err := os.ReadDir(m.Point)
	must(t, err)
	for _, e := range entries {
		if want[e.Name()] == nil {
			t.Errorf("the mount shows %s", e.Name())
		}
	}
	all, err := checkpoint.List(m.Point)
	must(t, err)
	if len(all) != len(want) {
		t.Errorf("%d checkpoints are listed: %v", len(all), all)
	}
	for name, files := range want {
		for file, data := range files {
			if got, err := os.ReadFile(m.Path(name, file)); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s/%s is not what was drained: %v", name, file, err)
			}
		}
		out, err := suite.Output(t.Context(), "checkpoint", "verify", "--json", m.Path(name))
		if err != nil || !strings.Contains(string(out), `"damaged": 0`) {
			t.Errorf("hbmfs checkpoint verify %s: %v\n%s", name, err, out)
		}
	}
}

// TestDrain drains a directory to a real server, by the command, and mounts what is there.
func TestDrain(t *testing.T) {
	servers.NeedS3(t)
	blackbox.NeedFUSE(t)
	p, bucket, dir := sitetest.NewProxy(t, s3.Socket), s3.Bucket(t), suite.NewDir(t)
	to := sitetest.S3Source(p, bucket+"/run")
	one, two := drainedFiles(1, part), drainedFiles(2, 1<<20)
	publish(t, dir, "step-9", one)
	publish(t, dir, "step-10", two)
	for range 2 {
		out, err := suite.Output(t.Context(), "checkpoint", "drain", "--json", dir, to)
		must(t, err)
		var s status.Drain
		must(t, json.Unmarshal(out, &s))
		if s.States != (status.DrainStates{Remote: 2}) || s.Pending != 0 {
			t.Fatalf("the drain says %s", out)
		}
	}
	s3.Put(t, bucket, "run/step-11/shards/part", []byte("its manifest never came"))
	out, err := suite.Output(t.Context(), "checkpoint", "ls", "--json", to)
	must(t, err)
	var listed struct{ Checkpoints []checkpoint.Entry }
	must(t, json.Unmarshal(out, &listed))
	if c := listed.Checkpoints; len(c) != 3 || c[0].Name != "step-9" || c[1].State != checkpoint.Complete || c[1].Files != len(two) || c[2].State != checkpoint.InWork {
		t.Errorf("hbmfs checkpoint ls says %s", out)
	}
	for _, source := range []string{to, sitetest.S3Source(p, bucket)} { // and the directory around it
		m := servers.Mount(t, source, "")
		if source == to {
			showsCheckpoints(t, m, map[string]map[string][]byte{"step-9": one, "step-10": two})
		} else if names, err := os.ReadDir(m.Path("run")); err != nil || len(names) != 2 {
			t.Errorf("the mount of the bucket shows %v, %v", names, err)
		}
		m.End(t)
	}
	other := suite.NewDir(t)
	publish(t, other, "step-12", map[string][]byte{"x": []byte("y")})
	var failed interface{ ExitCode() int }
	if out, err = suite.Command(t.Context(), "checkpoint", "drain", other, to).CombinedOutput(); !errors.As(err, &failed) || failed.ExitCode() != 3 || !strings.Contains(string(out), "two volumes do not share a place") {
		t.Errorf("a second directory: %v\n%s", err, out)
	}
}

// TestDrainOfOthers has a user drain a directory where one checkpoint is for its owner alone.
func TestDrainOfOthers(t *testing.T) {
	servers.NeedS3(t)
	blackbox.NeedRoot(t)
	p, bucket, dir := sitetest.NewProxy(t, s3.Socket), s3.Bucket(t), t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755)) // of the testing package
	for _, name := range []string{"step-1", "step-2"} {
		publish(t, dir, name, map[string][]byte{"x": []byte(name)})
	}
	must(t, errors.Join(os.Chown(dir, nobody, nobody), os.Chmod(filepath.Join(dir, "step-1"), 0o700)))
	cmd := suite.Command(t.Context(), "checkpoint", "drain", dir, sitetest.S3Source(p, bucket+"/run"))
	cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}, "/"
	out, err := cmd.CombinedOutput()
	var failed interface{ ExitCode() int }
	if !errors.As(err, &failed) || failed.ExitCode() != 3 || !strings.Contains(string(out), "step-1: it may be a checkpoint") || !strings.Contains(string(out), "permission denied") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = suite.Output(t.Context(), "checkpoint", "ls", sitetest.S3Source(p, bucket+"/run")); err != nil || !strings.Contains(string(out), "step-2") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestVolumeDrains has plain programs write into a volume that drains and keeps one checkpoint, and kills its daemon.
func TestVolumeDrains(t *testing.T) {
	servers.NeedS3(t)
	blackbox.NeedRoot(t)
	p, bucket, dir, point := sitetest.NewProxy(t, s3.Socket), s3.Bucket(t), suite.NewDir(t), suite.NewDir(t)
	to := sitetest.S3Source(p, bucket+"/run")
	log := filepath.Join(suite.NewDir(t), "log")
	v, err := suite.Mount(t.Context(), dir, point, "--checkpoints", "--drain", to, "--keep", "1", "--log-file", log)
	must(t, err)
	states := func() map[string]string {
		text, err := os.ReadFile(v.Path(".hbmfs", "status"))
		if err != nil {
			return nil
		}
		var s status.Status
		must(t, json.Unmarshal(text, &s))
		all := map[string]string{}
		for _, c := range s.Checkpoints.Published {
			all[c.Name] = c.State
		}
		return all
	}
	await := func(want map[string]string) {
		t.Helper()
		var got map[string]string
		if !blackbox.Within(patience, func() bool {
			got = states()
			return fmt.Sprint(got) == fmt.Sprint(want)
		}) {
			text, _ := os.ReadFile(log)
			t.Fatalf("the states are %v, want %v\n%s", got, want, text)
		}
	}
	want := map[string]map[string][]byte{}
	for step := range 4 {
		name := fmt.Sprintf("step-%d", 9+step)
		shard := 1 << 20
		if step == 2 { // the daemon is killed while it drains this one
			shard = part
		}
		want[name] = drainedFiles(byte(step), shard)
		for file, data := range want[name] {
			path := v.Path(name+".tmp", file)
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, data, 0o644))
		}
		must(t, os.Rename(v.Path(name+".tmp"), v.Path(name)))
		if step == 2 {
			pid, err := v.DaemonPID()
			must(t, err)
			must(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		await(map[string]string{name: "remote"}) // and the one before is gone here
	}
	if !blackbox.Within(patience, func() bool {
		text, err := os.ReadFile(v.Path(".hbmfs", "metrics"))
		return err == nil && strings.Contains(string(text), `hbmfs_drain_checkpoints{state="remote"} 1`)
	}) {
		t.Error("the metrics do not say that one checkpoint is here")
	}
	if names, err := os.ReadDir(point); err != nil || len(names) != 1 {
		t.Errorf("the volume shows %v, %v", names, err)
	}
	pid, err := v.DaemonPID()
	must(t, err)
	v.EndsWell(t, pid, log, patience)
	m := servers.Mount(t, to, "")
	showsCheckpoints(t, m, want)
}

// TestDrainedEmptyDirectories: a mount of the place shows directories that have nothing in them, which no object tells of.
func TestDrainedEmptyDirectories(t *testing.T) {
	servers.NeedS3(t)
	blackbox.NeedRoot(t)
	p, bucket, dir, point := sitetest.NewProxy(t, s3.Socket), s3.Bucket(t), suite.NewDir(t), suite.NewDir(t)
	to := sitetest.S3Source(p, bucket+"/run")
	log := filepath.Join(suite.NewDir(t), "log")
	v, err := suite.Mount(t.Context(), dir, point, "--checkpoints", "--log-file", log)
	must(t, err)
	must(t, os.MkdirAll(v.Path("step.tmp", "a/b"), 0o755))
	must(t, os.MkdirAll(v.Path("step.tmp", "c/d/e"), 0o755))
	must(t, os.WriteFile(v.Path("step.tmp", "c/file"), []byte("bytes"), 0o644))
	must(t, os.Rename(v.Path("step.tmp"), v.Path("step")))
	v.EndsWellYet(t, log, patience)
	_, err = suite.Output(t.Context(), "checkpoint", "drain", dir, to)
	must(t, err)
	m := servers.Mount(t, to, "")
	for _, name := range []string{"a", "a/b", "c/d/e"} {
		info, err := os.Stat(m.Path("step", name))
		if err != nil || !info.IsDir() {
			t.Errorf("%s: %v", name, err)
		}
	}
	if names, err := os.ReadDir(m.Path("step", "a/b")); err != nil || len(names) > 0 {
		t.Errorf("a/b has %v, %v", names, err)
	}
	for _, of := range []string{m.Path("step"), filepath.Join(dir, "step")} {
		if out, err := suite.Output(t.Context(), "checkpoint", "verify", of); err != nil {
			t.Errorf("verify: %v %s", err, out)
		}
	}
	must(t, os.Remove(filepath.Join(dir, "step", "a/b")))
	if out, err := suite.Command(t.Context(), "checkpoint", "verify", filepath.Join(dir, "step")).CombinedOutput(); err == nil || !strings.Contains(string(out), `"a/b"`) {
		t.Errorf("verify of a checkpoint without an empty directory: %v %s", err, out)
	}
	m.End(t)
}

// TestDrainGoesOnThroughUpgrades replaces the daemon of a volume while a file is on its way. The next daemon goes on with the upload, and sends
// nothing again that is there. With MinIO, for which there is more time, it does so twice.
func TestDrainGoesOnThroughUpgrades(t *testing.T) {
	servers.NeedS3(t)
	blackbox.NeedRoot(t)
	p, bucket, dir, point := sitetest.NewProxy(t, s3.Socket), s3.Bucket(t), suite.NewDir(t), suite.NewDir(t)
	to, log := sitetest.S3Source(p, bucket+"/run"), filepath.Join(suite.NewDir(t), "log")
	v, err := suite.Mount(t.Context(), dir, point, "--checkpoints", "--drain", to, "--log-file", log)
	must(t, err)
	t.Cleanup(func() {
		if mounted, err := blackbox.IsMounted(point); err == nil && mounted {
			_ = blackbox.Detach(point) // the test has failed
		}
	})
	up := &uploads{object: "/" + bucket + "/run/step-1/shards/large", sent: map[string]int{}}
	p.SetAnswer(up.answer)
	upgrades := 1
	if os.Getenv("HBMFS_MINIO") != "" {
		upgrades = 2
	}
	files := map[string][]byte{"config.json": []byte("{}"), "shards/part": make([]byte, 1<<20), "shards/large": make([]byte, (upgrades+1)<<25+1)} // in parts of 32 MiB
	_, _ = rand.NewChaCha8([32]byte{7}).Read(files["shards/large"])
	for file, data := range files {
		path := v.Path("step-1.tmp", file)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, data, 0o644))
	}
	up.more(1)
	must(t, os.Rename(v.Path("step-1.tmp"), v.Path("step-1")))
	for i := range upgrades {
		parts := 0
		if !blackbox.Within(patience, func() bool {
			_, err := s3.Client.StatObject(t.Context(), bucket, "run/step-1/shards/part", minio.StatObjectOptions{})
			parts = s3.Parts(t, bucket, "run/step-1/shards/large")
			return err == nil && parts == 1+i
		}) {
			text, _ := os.ReadFile(log)
			t.Fatalf("%d parts have arrived\n%s", parts, text)
		}
		before, err := v.DaemonPID()
		must(t, err)
		if out, err := suite.Command(t.Context(), "upgrade", point).CombinedOutput(); err != nil {
			t.Fatalf("hbmfs upgrade: %v: %s", err, out)
		}
		if now, err := v.DaemonPID(); err != nil || now == before {
			t.Errorf("the daemon is still %d, %v", now, err)
		}
		up.more(1) // now: a part that was on its way when its daemon ended is sent again, and rightly
	}
	up.more(5)
	var states status.Drain
	if !blackbox.Within(patience, func() bool {
		var s status.Status
		text, err := os.ReadFile(v.Path(".hbmfs", "status"))
		must(t, errors.Join(err, json.Unmarshal(text, &s)))
		states = *s.Checkpoints.Drain
		return states.States == status.DrainStates{Remote: 1}
	}) {
		t.Errorf("the drain says %+v", states)
	}
	for part, n := range up.times() {
		if n > 1 {
			t.Errorf("%s was sent %d times", part, n)
		}
	}
	pid, err := v.DaemonPID()
	must(t, err)
	v.EndsWell(t, pid, log, patience)
	showsCheckpoints(t, servers.Mount(t, to, ""), map[string]map[string][]byte{"step-1": files})
}

// uploads lets some parts of an object through, and tells the sender of others to come again.
type uploads struct {
	object string

	mu   sync.Mutex // guards the fields below
	room int        // for parts of the object
	sent map[string]int
}

func (u *uploads) more(n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.room += n
}

func (u *uploads) times() map[string]int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.sent)
}

func (u *uploads) answer(w http.ResponseWriter, r *http.Request) bool {
	part := r.URL.Query().Get("partNumber")
	if r.Method != http.MethodPut || part == "" {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if r.URL.Path == u.object {
		if u.room == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		u.room--
	}
	u.sent[r.URL.Path+" "+part]++
	return false
}

// TestDrainedAndDamaged deletes an object at a destination, and cuts one: the checkpoints are listed as damaged, mounts leave them out and say
// so, and the next drain mends them.
func TestDrainedAndDamaged(t *testing.T) {
	servers.NeedS3(t)
	blackbox.NeedFUSE(t)
	p, bucket, dir := sitetest.NewProxy(t, s3.Socket), s3.Bucket(t), suite.NewDir(t)
	to := sitetest.S3Source(p, bucket+"/run")
	files := map[string][]byte{"shards/part": bytes.Repeat([]byte("part"), 3<<20), "config.json": []byte("{}")}
	want := map[string]map[string][]byte{"step-1": files, "step-2": files, "step-3": files}
	for name := range want {
		publish(t, dir, name, files)
	}
	drain := func() string {
		out, err := suite.Output(t.Context(), "checkpoint", "drain", dir, to)
		must(t, err)
		return string(out)
	}
	drain()
	must(t, s3.Client.RemoveObject(t.Context(), bucket, "run/step-1/shards/part", minio.RemoveObjectOptions{}))
	s3.Put(t, bucket, "run/step-2/config.json", []byte("{"))
	out, err := suite.Output(t.Context(), "checkpoint", "ls", "--json", to)
	must(t, err)
	var listed struct{ Checkpoints []checkpoint.Entry }
	must(t, json.Unmarshal(out, &listed))
	c := listed.Checkpoints
	if len(c) != 3 || c[0].State != checkpoint.Damaged || c[1].State != checkpoint.Damaged || c[2].State != checkpoint.Complete {
		t.Fatalf("hbmfs checkpoint ls says %s", out)
	}
	if !strings.Contains(c[0].Why, "shards/part") || !strings.Contains(c[1].Why, "config.json") {
		t.Errorf("it does not say what is damaged: %s", out)
	}
	m := servers.Mount(t, to, "")
	showsCheckpoints(t, m, map[string]map[string][]byte{"step-3": files})
	if text, err := os.ReadFile(m.Log); err != nil || strings.Count(string(text), "left out") != 2 {
		t.Errorf("the log does not say what is left out: %v\n%s", err, text)
	}
	m.End(t)
	if said := drain(); !strings.Contains(said, "2 checkpoints were damaged at the destination") {
		t.Errorf("the drain says %s", said)
	}
	m = servers.Mount(t, to, "")
	showsCheckpoints(t, m, want)
	m.End(t)
}
