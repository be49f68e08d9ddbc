package csi_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEightReaders: eight pods read one remote volume at the same time. Every byte comes once over the network, and lies
// once in the cache.
func TestEightReaders(t *testing.T) {
	n := newNode(t)
	key := s3Key{"AKIDEIGHT", "secret/of/the/eight", "token/of/the/eight"}
	store := newS3Store(t, key)
	files := someFiles(1)
	store.put("corpus", files)
	v := s3Volume("corpus", store, "corpus", key)
	pods := n.startPods(v, 8)
	n.parallel(len(pods), func(i int) {
		for k := range files {
			pods[i].must("read", files[(i+k)%len(files)])
		}
	})
	var size int64
	for _, f := range files {
		size += int64(f.Size)
		if got, twice := store.gave("corpus/" + f.Name); got != int64(f.Size) || twice {
			t.Errorf("%d bytes of %s, which has %d, came over the network (some of them twice: %v)", got, f.Name, f.Size, twice)
		}
	}
	for _, p := range pods {
		for _, f := range files {
			var a answer // a segment is there for others once it is on the disk
			if !within(func() bool { a = p.must("control", f); return a.Bytes == int64(f.Size) }) {
				t.Errorf("%d bytes of %s, which has %d, were read past the mount", a.Bytes, f.Name, f.Size)
			}
		}
	}
	if kept := allocated(t, filepath.Join(n.state, "cache")); kept < size || kept > size+size/2+1<<20 {
		t.Errorf("the cache has %d bytes for a volume of %d", kept, size)
	}
	n.stopPods(pods)
	n.unstage(v)
	n.mustBeClean()
}

// allocated is what the files below a directory take of the disk.
func allocated(t testing.TB, dir string) (n int64) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		var stat unix.Stat_t
		err = unix.Stat(path, &stat)
		n += stat.Blocks * 512
		return err
	}))
	return n
}

// TestSecretsRotate takes a key back while a pod reads: what was being read waits for the new secret, which comes with the
// next call of kubelet, and goes on without an error. Nobody sees any of the secrets.
func TestSecretsRotate(t *testing.T) {
	n := newNode(t)
	keys := []s3Key{
		{"AKIDFIRST", "first+secret/with=signs", "the.first+token/with=signs=="}, {"AKIDSECOND", "the+second/secret", "the+second/token"},
		{"AKIDTHIRD", "the+third/secret/without/token", ""},
	}
	store := newS3Store(t, keys[0])
	var files []file
	for i := range 10 {
		files = append(files, file{fmt.Sprintf("shard-%d.bin", i), uint64(i), 2 << 20})
	}
	store.put("corpus", files)
	v := s3Volume("corpus", store, "corpus", keys[0])
	p := n.startPod(v, podOptions{})
	p.must("read", files[0])
	for i, refusal := range []string{"ExpiredToken", "InvalidAccessKeyId"} {
		store.rule(keys[i], refusal)
		store.rule(keys[i+1], "")
		f, reading := readUntilRefused(t, store, p, files[1+4*i:5+4*i])
		v.secrets = keys[i+1].secret()
		n.publish(v, p.uid)
		if a := <-reading; refusal == "ExpiredToken" && a.Error != "" {
			t.Errorf("the read that was under way while the secret expired: %s", a.Error)
		}
		p.soon("read", f)
		p.soon("read", files[9])
	}
	if len(n.daemons()) != 1 {
		t.Errorf("after new secrets there are %d daemons", len(n.daemons()))
	}
	n.mustHide(p, keys)
	n.stopPod(p)
	n.unstage(v)
	n.mustBeClean()
}

// readUntilRefused reads files until the store is asked for something, which it refuses: what the daemon has read ahead is
// there. It returns what is being read.
func readUntilRefused(t *testing.T, store *s3Store, p *pod, files []file) (file, <-chan answer) {
	t.Helper()
	before := store.refusals()
	for _, f := range files {
		reading := make(chan answer, 1)
		go func() { reading <- p.do("read", f) }() // ends with the read
		if within(func() bool { return len(reading) > 0 || store.refusals() > before }) && store.refusals() > before {
			return f, reading
		}
	}
	t.Fatal("the pod reads, and nothing is asked of the store")
	return file{}, nil
}

// mustHide looks for secrets where somebody may see them.
func (n *node) mustHide(p *pod, keys []s3Key) {
	n.t.Helper()
	secrets := []string{podToken}
	for _, k := range keys {
		secrets = append(secrets, k.key)
		if k.token != "" {
			secrets = append(secrets, k.token)
		}
	}
	look := func(where string, text []byte) {
		for _, s := range secrets {
			if bytes.Contains(text, []byte(s)) {
				n.t.Errorf("%s shows %q", where, s)
			}
		}
	}
	look("the status", []byte(p.must("status", file{}).Text))
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(n.t, err)
	for _, name := range lines {
		if text, err := os.ReadFile(name); err == nil && !bytes.Contains(text, []byte("\x00-test.")) { // a process may have ended
			look(name, text)
		}
	}
	for _, dir := range []string{n.state, n.logs, n.kubelet} {
		must(n.t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && (d.Name() == "mnt" || d.Name() == "mount" || d.Name() == "globalmount") {
				return fs.SkipDir
			}
			if !d.Type().IsRegular() {
				return nil
			}
			text, err := os.ReadFile(path)
			info, infoErr := d.Info()
			if err != nil || infoErr != nil {
				return nil // it has gone meanwhile
			}
			if strings.HasPrefix(path, filepath.Join(n.state, "volumes")) && info.Mode().Perm() == 0o600 && d.Name() != "volume.json" {
				return nil // what the daemon reads them from
			}
			look(path, text)
			return nil
		}))
	}
}

// TestNobodyBorrowsRights: what one pod may read by its secret, another does not get without one, with a wrong one, or
// because it lies in the cache by now.
func TestNobodyBorrowsRights(t *testing.T) {
	n := newNode(t)
	key := s3Key{"AKIDOWNER", "secret/of/the/owner", ""}
	store := newS3Store(t, key)
	files := someFiles(1)
	store.put("corpus", files)
	v := s3Volume("corpus", store, "corpus", key)
	p, q := n.startPod(v, podOptions{}), n.startPod(v.inlined("owner"), podOptions{})
	for _, f := range files {
		p.must("read", f)
		q.must("read", f)
	}
	for what, secret := range map[string]map[string]string{
		"no secret": nil, "a wrong secret": s3Key{key.id, "wrong", ""}.secret(), "a wrong key": s3Key{"AKIDOTHER", key.key, ""}.secret(),
	} {
		thief := v.inlined("thief")
		thief.secrets = secret
		uid := n.newUID()
		mustRefuse(t, what, n.publishOnce(n.publishRequest(thief, uid)), "PermissionDenied", "")
		n.unpublish(thief, uid)
	}
	p.must("read", files[0])
	n.stopPods([]*pod{p, q})
	n.unstage(v)
	n.mustBeClean()
}

// TestSourceIsDown: a store that does not answer costs the volumes of others nothing.
func TestSourceIsDown(t *testing.T) {
	t.Parallel() // it waits most of the time
	n := newNode(t)
	key := s3Key{"AKIDDOWN", "secret", ""}
	store := newS3Store(t, key)
	files := someFiles(1)
	store.put("corpus", files)
	broken, good := s3Volume("broken", store, "corpus", key), n.directoryVolume("good", files)
	store.Close()
	broken.attributes["patience"] = "2s"
	failed := make(chan error, 1)
	go func() { failed <- n.stageOnce(broken) }() // ends with the call
	began := time.Now()
	p := n.startPod(good, podOptions{})
	p.must("read", files[0])
	t.Logf("beside it another volume took %v", time.Since(began))
	err := <-failed
	mustRefuse(t, "staging a source that is down", err, "Unavailable", "")
	n.stopPod(p)
	n.unstage(good)
	broken.staged = true // kubelet takes away what it tried to stage
	n.unstage(broken)
	n.mustBeClean()
}

// TestCacheOfOthers: a pod cannot bound the node's cache by an inline volume, or it could empty it.
func TestCacheOfOthers(t *testing.T) {
	n := newNode(t)
	key := s3Key{"AKIDCACHE", "secret", ""}
	store := newS3Store(t, key)
	files := someFiles(1)
	store.put("corpus", files)
	v := s3Volume("corpus", store, "corpus", key)
	p := n.startPod(v, podOptions{})
	var size int64
	for _, f := range files {
		p.must("read", f)
		size += int64(f.Size)
	}
	cached := filepath.Join(n.state, "cache")
	if !within(func() bool { return allocated(t, cached) >= size }) {
		t.Fatalf("the cache has %d bytes of %d", allocated(t, cached), size)
	}
	for _, room := range []struct{ name, value string }{{"cacheMinFree", "900TiB"}, {"cacheSize", "1"}, {"connections", "4096"}} {
		thief := v.inlined("thief")
		thief.attributes = maps.Clone(thief.attributes)
		thief.attributes[room.name] = room.value
		uid := n.newUID()
		mustRefuse(t, room.name, n.publishOnce(n.publishRequest(thief, uid)), "InvalidArgument", room.name)
		n.unpublish(thief, uid)
	}
	if kept := allocated(t, cached); kept < size {
		t.Errorf("the cache has %d bytes of %d left", kept, size)
	}
	n.stopPod(p)
	n.unstage(v)
	n.mustBeClean()
}
