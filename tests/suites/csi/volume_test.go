package csi_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// someFiles are files of a volume: one that is larger than what is read at once, small ones, and one in a directory.
func someFiles(seed uint64) []file {
	return []file{
		{"train.bin", seed, 3<<20 + 17}, {"val.bin", seed + 1, 300_000}, {"more/shard.bin", seed + 2, 1 << 20}, {"more/one", seed + 3, 1},
	}
}

// directory makes a directory of files that every pod may read, and that volumes may have as their source.
func (n *node) directory(name string, files []file) (path string) {
	n.t.Helper()
	path = filepath.Join(n.data, name)
	must(n.t, os.MkdirAll(path, 0o755))
	for _, f := range files {
		at := filepath.Join(path, f.Name)
		must(n.t, os.MkdirAll(filepath.Dir(at), 0o755))
		must(n.t, os.WriteFile(at, content(f), 0o644))
	}
	return path
}

// directoryVolume is a PersistentVolume of a new directory of this node.
func (n *node) directoryVolume(name string, files []file) *volume {
	n.t.Helper()
	return &volume{name: name, attributes: map[string]string{"source": n.directory(name, files)}}
}

// s3Volume is a PersistentVolume of what the store holds below a prefix, with a secret.
func s3Volume(name string, s *s3Store, prefix string, k s3Key) *volume {
	return &volume{name: name, secrets: k.secret(), attributes: map[string]string{
		"source":       fmt.Sprintf("s3://%s/%s?endpoint=%s&region=us-east-1", bucket, prefix, s.URL),
		"cacheSize":    "256MiB",
		"cacheMinFree": "1MiB", // however full this machine's disk is
		"connections":  "4",
	}}
}

// inlined is the volume as a pod asks for it by itself: kubelet says so, and some attributes are not for pods.
func (v *volume) inlined(name string) *volume {
	attributes := maps.Clone(v.attributes)
	delete(attributes, "cacheSize")
	delete(attributes, "cacheMinFree")
	return &volume{name: name, inline: true, attributes: attributes, secrets: v.secrets, fsGroup: v.fsGroup, writes: v.writes}
}

func groupOf(t testing.TB, path string) uint32 {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatal("no stat of Linux")
	}
	return stat.Gid
}
