package host

import (
	"errors"
	"os"
	"testing"

	"google.golang.org/grpc/codes"
)

// TestARecordThatCannotBeWritten has the state directory's disk be full, as it seems: what kubelet wanted has not happened, and its next
// try finds all as it was.
func TestARecordThatCannotBeWritten(t *testing.T) {
	n := newNode(t)
	n.write("a.bin", "some tokens")
	path := n.stage("v")
	n.must(n.publish("v", "p"))
	n.mu.Lock()
	v, _ := n.published(n.target("p"))
	n.mu.Unlock()
	inTheWay := v.path(recordName) + ".new"
	refused := func(what string, try func() error) {
		t.Helper()
		n.must(os.MkdirAll(inTheWay, 0o755))
		for range 2 {
			if err := try(); err == nil {
				t.Errorf("%s: it is done, and the record says that it is not", what)
			}
		}
		n.must(os.Remove(inTheWay))
		n.must(try())
	}
	unpublish := func(pod string) func() error { return func() error { return n.unpublish("v", pod) } }
	publish := func(pod string) func() error { return func() error { return n.publish("v", pod) } }
	refused("a pod comes", publish("q"))
	refused("a pod leaves", unpublish("q"))
	refused("the last pod leaves", unpublish("p"))
	refused("the volume is unstaged", func() error { return n.unstage("v", path) })
	n.clean()

	n.must(os.MkdirAll(inTheWay, 0o755))
	n.code(n.publish("v", "p"), codes.Unknown, recordName)
	n.mu.Lock()
	known := len(n.volumes)
	n.mu.Unlock()
	if _, err := os.Stat(v.dir()); known != 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%d volumes are known of which nothing could be recorded, and the directory: %v", known, err)
	}
	n.clean()

	n.must(n.publish("v", "p"))
	n.endHost()
	n.must(hide(n.target("p"))) // the pod leaves while no host is there: nobody says so to the next one
	n.must(os.MkdirAll(inTheWay, 0o755))
	n.startHost()
	n.recovered()
	n.clean()
}
