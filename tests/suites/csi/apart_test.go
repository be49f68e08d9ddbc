package csi_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestSecretsOfTheSameText has two inline volumes with secrets of the same text share a daemon. Once one of them is
// changed, kubelet's calls for the other do not put the earlier keys back, as long as the changed one is in use.
func TestSecretsOfTheSameText(t *testing.T) {
	n := newNode(t)
	shared, own := s3Key{"AKIDSHARED", "secret/of/both", ""}, s3Key{"AKIDOWN", "secret/of/one", ""}
	store := newS3Store(t, shared, own)
	files := someFiles(1)
	store.put("corpus", files)
	v := s3Volume("corpus", store, "corpus", shared)
	changed, kept := v.inlined("changed"), v.inlined("kept")
	p, q := n.startPod(changed, podOptions{}), n.startPod(kept, podOptions{})
	mustHold := func(want string) {
		t.Helper()
		if held := n.keysHeld(); !slices.Equal(held, []string{want}) {
			t.Fatalf("the daemons hold the keys %q, want %q", held, want)
		}
	}
	mustHold(shared.id)
	changed.secrets = own.secret()
	for range 2 {
		n.publish(changed, p.uid)
		mustHold(own.id)
		n.publish(kept, q.uid)
		mustHold(own.id)
	}
	store.rule(shared, "InvalidAccessKeyId")
	p.soon("read", files[0])
	q.soon("read", files[0])
	n.stopPods([]*pod{p})
	n.publish(kept, q.uid)
	mustHold(shared.id)
	store.rule(shared, "")
	store.rule(own, "InvalidAccessKeyId")
	q.soon("read", files[len(files)-1])
	n.stopPods([]*pod{q})
	n.mustBeClean()
}

// keysHeld are the access keys that the node's daemons are served with, in order.
func (n *node) keysHeld() (ids []string) {
	n.t.Helper()
	held, err := filepath.Glob(filepath.Join(n.state, "volumes", "*", "credentials"))
	must(n.t, err)
	for _, path := range held {
		text, err := os.ReadFile(path)
		must(n.t, err)
		_, id, _ := strings.Cut(string(text), "aws_access_key_id = `")
		id, _, _ = strings.Cut(id, "`")
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
