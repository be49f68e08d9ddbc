package handover

import (
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMirror tells of two mounts whose messages come mixed, and of one that is over.
func TestMirror(t *testing.T) {
	ours, theirs, err := Pair()
	must(t, err)
	defer func() { _ = unix.Close(theirs) }()
	file, err := sealed(States, []byte("bytes"))
	must(t, err)
	defer func() { _ = file.Close() }()
	c := Copy{Device: int(file.Fd()), States: int(file.Fd())}
	must(t, send(ours, say("MOUNT=b", "FDNAME=one").with(c[Device])))
	to, from := NewMirror(ours), NewMirror(theirs)
	must(t, to.Send("a", c))
	must(t, send(ours, say("MOUNT=b", "HELD=1")))
	must(t, to.Send("a", nil))
	must(t, send(ours, say("MOUNT=b", "FDNAME=cut off").with(c[Device])))
	must(t, unix.Close(ours))
	for _, want := range []struct {
		mount string
		count int
	}{{"a", 2}, {"b", 1}, {"a", 0}} {
		mount, got, err := from.Next()
		must(t, err)
		if mount != want.mount || len(got) != want.count {
			t.Errorf("told of %d files of %q, want %d of %q", len(got), mount, want.count, want.mount)
		}
		again := got.Clone()
		if len(again) != len(got) || again.Connected() != (want.count == 2) { // a file is no connection that has ended
			t.Errorf("a clone of %v is %v", got, again)
		}
		got.Close()
		again.Close()
	}
	if _, _, err := from.Next(); err != io.EOF || len(from.parts["b"]) != 1 {
		t.Errorf("the end is %v, after %v", err, from.parts)
	}
}
