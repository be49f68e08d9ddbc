package csi_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox/hub"
)

// TestHubVolumes: a pod with a token in its secret reads a gated repository of the Hub. A pod without one does not, though the bytes lie in
// the node's cache by now. The token is a file of the state, and nowhere else on the node.
func TestHubVolumes(t *testing.T) {
	n := newNode(t)
	h := hub.New(t)
	repo, files, all := h.Repo("models/org/gated"), someFiles(1), map[string][]byte{}
	for _, f := range files {
		all[f.Name] = content(f)
	}
	repo.Gated = true
	repo.Commit(all)
	v := &volume{name: "model", inline: true, secrets: map[string]string{"HF_TOKEN": h.Token}, attributes: map[string]string{"source": repo.Source()}}
	p := n.startPod(v, podOptions{})
	for _, f := range files {
		p.must("read", f)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, name := range processes {
		if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), h.Token) {
			t.Errorf("the token is an argument of a process: %q", text)
		}
	}
	for what, secret := range map[string]map[string]string{"no secret": nil, "a wrong token": {"HF_TOKEN": "hf_wrong"}} {
		thief := &volume{name: "thief", inline: true, secrets: secret, attributes: v.attributes}
		uid := n.newUID()
		mustRefuse(t, what, n.publishOnce(n.publishRequest(thief, uid)), "PermissionDenied", "")
		n.unpublish(thief, uid)
	}
	p.must("read", files[0])
	seen := 0
	for _, dir := range []string{n.state, n.logs, n.kubelet} {
		must(t, filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || strings.Contains(name, "/segments/") {
				return nil // a mount, or bytes of files
			}
			text, err := os.ReadFile(name)
			if err != nil || !strings.Contains(string(text), h.Token) {
				return nil
			}
			info, err := d.Info()
			if seen++; err != nil || d.Name() != "credentials" || info.Mode().Perm() != 0o600 {
				return fmt.Errorf("%s (%v) has the token", name, info.Mode())
			}
			return nil
		}))
	}
	if seen != 1 {
		t.Errorf("%d files have the token, want the credentials of the volume", seen)
	}
	n.stopPods([]*pod{p})
	n.mustBeClean()
}
