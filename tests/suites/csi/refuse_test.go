package csi_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// mustRefuse checks the code of an error, and that its text names what is wrong.
func mustRefuse(t testing.TB, what string, err error, want, names string) {
	t.Helper()
	if got := code(err).String(); got != want || (names != "" && !strings.Contains(err.Error(), names)) {
		t.Errorf("%s: %s (%v), want %s that names %q", what, got, err, want, names)
	}
}

// TestRefusals: what is asked for wrongly is refused, with the right code and a text that names it; nothing stays.
func TestRefusals(t *testing.T) {
	n := newNode(t)
	key := s3Key{"AKIDGOOD", "secret", ""}
	store := newS3Store(t, key)
	store.put("corpus", someFiles(1))
	at := "?endpoint=" + store.URL + "&region=us-east-1"
	corpus := n.directory("corpus", someFiles(1))
	must(t, os.Symlink("/etc", filepath.Join(n.data, "link")))
	good := key.secret()
	for _, c := range []struct {
		what        string
		attributes  map[string]string
		secrets     map[string]string
		want, names string
	}{
		{"no source", map[string]string{}, nil, "InvalidArgument", "source"},
		{"an unknown attribute", with(corpus, "sorce", "/data"), nil, "InvalidArgument", "sorce"},
		{"a relative source", map[string]string{"source": "corpus"}, nil, "InvalidArgument", "source"},
		{"a source of an unknown kind", map[string]string{"source": "ftp://host/corpus"}, nil, "InvalidArgument", "source"},
		{"a directory that is not allowed", map[string]string{"source": "/etc"}, nil, "FailedPrecondition", "--allow-source"},
		{"a way out of what is allowed", map[string]string{"source": n.data + "/../state"}, nil, "InvalidArgument", "source"},
		{"a link out of what is allowed", map[string]string{"source": n.data + "/link"}, nil, "FailedPrecondition", "--allow-source"},
		{"a neighbour of what is allowed", map[string]string{"source": n.data + "set"}, nil, "FailedPrecondition", "--allow-source"},
		{"a directory that is not there", map[string]string{"source": n.data + "/nothing"}, nil, "NotFound", "nothing"},
		{"a bucket that is not there", map[string]string{"source": "s3://nothing/corpus" + at}, good, "NotFound", "nothing"},
		{"a prefix that is not there", map[string]string{"source": "s3://" + bucket + "/nothing" + at}, good, "NotFound", "nothing"},
		{"a key that is not known", map[string]string{"source": "s3://" + bucket + "/corpus" + at}, s3Key{"AKIDBAD", "secret", ""}.secret(), "PermissionDenied", ""},
		{"a secret that is wrong", map[string]string{"source": "s3://" + bucket + "/corpus" + at}, s3Key{"AKIDGOOD", "wrong", ""}.secret(), "PermissionDenied", ""},
		{"a format that there is not", with(corpus, "format", "nonsense"), nil, "InvalidArgument", "format"},
		{"a type that there is not", with(corpus, "dtype", "u99"), nil, "InvalidArgument", "dtype"},
		{"a size that is none", with(corpus, "cacheSize", "lots"), nil, "InvalidArgument", "cacheSize"},
		{"a negative size", with(corpus, "cacheMinFree", "-1"), nil, "InvalidArgument", "cacheMinFree"},
		{"connections that are none", with(corpus, "connections", "many"), nil, "InvalidArgument", "connections"},
		{"patience that is no time", with(corpus, "patience", "soon"), nil, "InvalidArgument", "patience"},
		{"read-ahead that is none", with(corpus, "readAhead", "far"), nil, "InvalidArgument", "readAhead"},
		{"a user that is none", with(corpus, "uid", "root"), nil, "InvalidArgument", "uid"},
		{"a mask that is none", with(corpus, "umask", "999"), nil, "InvalidArgument", "umask"},
		{"a switch that is neither on nor off", with(corpus, "showViews", "perhaps"), nil, "InvalidArgument", "showViews"},
		{"a level that there is not", with(corpus, "logLevel", "loud"), nil, "InvalidArgument", "logLevel"},
		{"an authentication that there is not", with(corpus, "authentication", "magic"), nil, "InvalidArgument", "authentication"},
		{"a secret for a directory", with(corpus), good, "InvalidArgument", "secret"},
		{"a secret of unknown keys", map[string]string{"source": "s3://" + bucket + "/corpus" + at}, map[string]string{"PASSWORD": "hush"}, "InvalidArgument", "PASSWORD"},
		{"half a secret", map[string]string{"source": "s3://" + bucket + "/corpus" + at}, map[string]string{"AWS_ACCESS_KEY_ID": "AKIDGOOD"}, "InvalidArgument", "AWS_SECRET_ACCESS_KEY"},
		{"nobody with a secret", map[string]string{"source": "s3://" + bucket + "/corpus" + at, "authentication": "anonymous"}, good, "InvalidArgument", "authentication"},
		{"by secret without one", map[string]string{"source": "s3://" + bucket + "/corpus" + at, "authentication": "secret"}, nil, "InvalidArgument", "authentication"},
		{"an option that looks like a flag", with(corpus, "format", "--log-file=/tmp/x"), nil, "InvalidArgument", "format"},
	} {
		for _, v := range []*volume{{name: "pv", attributes: c.attributes, secrets: c.secrets}, {name: "inline", inline: true, attributes: c.attributes, secrets: c.secrets}} {
			call := func() error { return n.publishOnce(n.publishRequest(v, "pod-0001")) }
			if !v.inline {
				call = func() error { return n.stageOnce(v) }
			}
			err := call()
			mustRefuse(t, c.what, err, c.want, c.names)
			if err != nil && strings.Contains(err.Error(), "hush") {
				t.Errorf("%s: the answer shows the secret", c.what)
			}
			v.staged = !v.inline
			n.unpublish(v, "pod-0001")
			n.unstage(v)
		}
	}
	n.mustBeClean()
}

// with is the attributes of a directory, and one more.
func with(source string, more ...string) map[string]string {
	m := map[string]string{"source": source}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

// TestRefusedCapabilities: volumes are read-only filesystems.
func TestRefusedCapabilities(t *testing.T) {
	n := newNode(t)
	v := n.directoryVolume("corpus", someFiles(1))
	n.stage(v)
	for _, mode := range []csi.VolumeCapability_AccessMode_Mode{
		csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER,
		csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER,
	} {
		r := n.publishRequest(v, "pod-0001")
		r.VolumeCapability.AccessMode.Mode = mode
		mustRefuse(t, mode.String(), n.publishOnce(r), "InvalidArgument", "")
	}
	r := n.publishRequest(v, "pod-0001")
	r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
	mustRefuse(t, "a block device", n.publishOnce(r), "InvalidArgument", "Block")
	n.unpublish(v, "pod-0001")
	n.unstage(v)
	n.mustBeClean()
}

// TestTargetsThatAreNoDirectories are refused, and nothing behind them is touched.
func TestTargetsThatAreNoDirectories(t *testing.T) {
	n := newNode(t)
	v := n.directoryVolume("corpus", someFiles(1))
	n.stage(v)
	target := n.targetPath(v, "pod-0001")
	elsewhere := filepath.Join(n.dir, "elsewhere")
	must(t, errors.Join(os.MkdirAll(filepath.Dir(target), 0o750), os.Mkdir(elsewhere, 0o755), os.WriteFile(filepath.Join(elsewhere, "keep"), []byte("this"), 0o644)))
	for name, make := range map[string]func() error{
		"a file":             func() error { return os.WriteFile(target, []byte("keep"), 0o644) },
		"a link to a file":   func() error { return os.Symlink(filepath.Join(elsewhere, "keep"), target) },
		"a link to a folder": func() error { return os.Symlink(elsewhere, target) },
		"a link to nothing":  func() error { return os.Symlink(filepath.Join(elsewhere, "nothing"), target) },
		"a directory in use": func() error {
			return errors.Join(os.Mkdir(target, 0o750), os.WriteFile(filepath.Join(target, "keep"), nil, 0o644))
		},
	} {
		must(t, make())
		if err := n.publishOnce(n.publishRequest(v, "pod-0001")); name != "a directory in use" && (code(err).String() == "OK" || code(err).String() == "Unknown") {
			t.Errorf("publishing at %s: %v", name, err)
		}
		for range 2 {
			_ = n.unpublishOnce(v, "pod-0001") // either way, nothing may be lost
		}
		if text, err := os.ReadFile(filepath.Join(elsewhere, "keep")); err != nil || string(text) != "this" {
			t.Errorf("%s: a file behind it has %q, %v", name, text, err)
		}
		if _, err := os.Stat(filepath.Join(target, "keep")); name == "a directory in use" && err != nil {
			t.Errorf("what was in a target is gone: %v", err)
		}
		must(t, os.RemoveAll(target))
	}
	n.unpublish(v, "pod-0001")
	n.unstage(v)
	n.mustBeClean()
}

// TestTargetsElsewhere: kubelet asks for places in its own directory only, and a caller that asks for others is not
// kubelet.
func TestTargetsElsewhere(t *testing.T) {
	n := newNode(t)
	v := n.directoryVolume("corpus", someFiles(1))
	n.stage(v)
	elsewhere := filepath.Join(n.dir, "elsewhere")
	must(t, os.MkdirAll(filepath.Join(elsewhere, "mount"), 0o755))
	must(t, os.Symlink(elsewhere, filepath.Join(n.kubelet, "pods", "link")))
	for _, target := range []string{
		elsewhere, filepath.Join(elsewhere, "mount"), n.kubelet + "/pods/../../elsewhere", n.kubelet + "/pods/link/mount", "relative/mount", n.kubelet, n.state,
		filepath.Join(n.state, "volumes"),
	} {
		r := n.publishRequest(v, "pod-0001")
		r.TargetPath = target
		err := n.client(func(ctx context.Context, _ csi.IdentityClient, node csi.NodeClient) error {
			_, err := node.NodePublishVolume(ctx, r)
			return err
		})
		mustRefuse(t, "a target at "+target, err, "InvalidArgument", "target")
	}
	must(t, os.Remove(filepath.Join(n.kubelet, "pods", "link")))
	n.unstage(v)
	n.mustBeClean()
}

// TestAnotherVolumeOfTheSameName: a volume id that is staged cannot become another volume.
func TestAnotherVolumeOfTheSameName(t *testing.T) {
	n := newNode(t)
	files := someFiles(1)
	v := n.directoryVolume("corpus", files)
	p := n.startPod(v, podOptions{})
	other := n.directoryVolume("other", someFiles(100))
	other.name = v.name
	mustRefuse(t, "staging another volume", n.stageOnce(other), "AlreadyExists", "")
	mustRefuse(t, "publishing another volume", n.publishOnce(n.publishRequest(other, p.uid)), "AlreadyExists", "")
	p.must("read", files[0])
	n.stopPod(p)
	n.unstage(v)
	n.mustBeClean()
}
