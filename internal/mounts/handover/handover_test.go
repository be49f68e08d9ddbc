package handover

import (
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// part is a state of bytes.
type part struct {
	name    string
	version uint32
	bytes   []byte
}

func (p *part) Section() (string, uint32)  { return p.name, p.version }
func (p *part) Save() ([]byte, error)      { return p.bytes, nil }
func (p *part) Adopt(section []byte) error { p.bytes = section; return nil }
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSnapshotComesBack(t *testing.T) {
	b, err := encode([]State{&part{"a", 1, []byte("first")}, &part{"b", 7, nil}})
	must(t, err)
	all, err := decode(b)
	must(t, err)
	got := &part{name: "a", version: 1}
	if must(t, adopt(all, got)); string(got.bytes) != "first" {
		t.Errorf("%q came back", got.bytes)
	}
	must(t, adopt(all, &part{name: "b", version: 7}))
	for says, s := range map[string]State{"no part": &part{name: "c"}, "version 7, and this program reads version 8": &part{name: "b", version: 8}} {
		if err := adopt(all, s); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want a refusal that says %q", err, says)
		}
	}
}

// TestSnapshotIsRefused has every byte changed, and every part left out.
func TestSnapshotIsRefused(t *testing.T) {
	b, err := encode([]State{&part{"a", 1, []byte("first")}, &part{"b", 7, []byte{0}}})
	must(t, err)
	for i := range b {
		if _, err := decode(b[:i]); !errors.Is(err, ErrRefused) {
			t.Errorf("%d of %d bytes: %v", i, len(b), err)
		}
		bad := append([]byte(nil), b...)
		bad[i] ^= 1
		if _, err := decode(bad); !errors.Is(err, ErrRefused) {
			t.Errorf("byte %d is changed: %v", i, err)
		}
	}
	newer := append([]byte(nil), b[:len(b)-4]...)
	newer[len(statesMagic)]++
	newer = binary.LittleEndian.AppendUint32(newer, castagnoli(newer))
	if _, err := decode(newer); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "format 2") {
		t.Errorf("a newer format: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	b, err := encode([]State{&part{"a", 1, []byte("first")}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= 4 { // as a hand that knows the checksum would make it
			b = binary.LittleEndian.AppendUint32(b[:len(b)-4], castagnoli(b[:len(b)-4]))
		}
		all, err := decode(b)
		if err != nil && !errors.Is(err, ErrRefused) {
			t.Errorf("%v is no refusal", err)
		}
		for _, s := range all {
			if len(s.bytes) > len(b) {
				t.Error("a section is longer than all")
			}
		}
	})
}

// TestJournalEndsWhereItWasCut has the last record cut short at each byte, and the next daemon append.
func TestJournalEndsWhereItWasCut(t *testing.T) {
	j, err := NewJournal()
	must(t, err)
	must(t, j.Append(1, []byte("one")))
	whole := j.end
	must(t, j.Append(2, []byte("the second")))
	all, err := read(j.File())
	must(t, err)
	for cut := whole; cut < int64(len(all)); cut++ {
		f, err := NewMemory("cut")
		must(t, err)
		_, err = f.Write(all[:cut])
		must(t, err)
		var got []string
		again := ReadJournal(f)
		must(t, errors.Join(again.Replay(func(_ uint32, record []byte) error { got = append(got, string(record)); return nil }), again.Cut()))
		must(t, again.Append(3, nil))
		var kinds []uint32
		must(t, ReadJournal(f).Replay(func(kind uint32, _ []byte) error { kinds = append(kinds, kind); return nil }))
		if len(got) != 1 || got[0] != "one" || len(kinds) != 2 || kinds[1] != 3 {
			t.Errorf("cut at %d: %q, and then %v", cut, got, kinds)
		}
		must(t, f.Close())
	}
	if err := j.Append(1, make([]byte, recordMax+1)); err == nil {
		t.Error("a record without bound is taken")
	}
}

// TestMessages has one end hear what the other says, with a descriptor, and the end.
func TestMessages(t *testing.T) {
	a, b, err := pair()
	must(t, err)
	f, err := NewMemory("x")
	must(t, err)
	must(t, send(a, say("FDSTORE=1", "FDNAME=x=y").with(int(f.Fd()))))
	m, err := receive(b)
	must(t, err)
	if m.fields["FDSTORE"] != "1" || m.fields["FDNAME"] != "x=y" || m.fd < 0 {
		t.Errorf("heard %+v", m)
	}
	m.close()
	must(t, unix.Close(a))
	if _, err := receive(b); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	must(t, errors.Join(unix.Close(b), f.Close()))
}

func TestResent(t *testing.T) {
	if again, n := Resent(1<<63 | 5); !again || n != 5 {
		t.Errorf("%v %d", again, n)
	}
	if again, n := Resent(6); again || n != 6 {
		t.Errorf("%v %d", again, n)
	}
}

// TestSystemdKeeps has a fake of systemd's descriptor store: its socket, and a child that is given the store as systemd does. No
// systemd is asked.
func TestSystemdKeeps(t *testing.T) {
	name := filepath.Join(t.TempDir(), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	must(t, err)
	defer func() { must(t, systemd.Close()) }()
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("FDSTORE", "16")
	l, err := Inherited()
	must(t, err)
	if l.Adopts() {
		t.Fatal("the first life adopts")
	}
	f, err := NewMemory("table")
	must(t, err)
	must(t, l.Keep("table", f))
	must(t, l.Begin(t.Context(), slog.New(slog.DiscardHandler), &part{"a", 1, []byte("state")}))
	l.Drop("table")
	if kind, _, _ := l.Holder(); kind != BySystemd {
		t.Errorf("held by %q", kind)
	}
	store := map[string]int{}
	for len(store) < 2 {
		p, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
		n, k, _, _, err := systemd.ReadMsgUnix(p, oob)
		must(t, err)
		words := strings.Split(strings.TrimSpace(string(p[:n])), "\n")
		parts, err := unix.ParseSocketControlMessage(oob[:k])
		must(t, err)
		fds, err := unix.ParseUnixRights(&parts[0])
		must(t, err)
		for _, w := range words {
			if name, ok := strings.CutPrefix(w, "FDNAME="); ok {
				store[name] = fds[0]
			}
		}
	}
	if store["table"] == 0 || store[States] == 0 {
		t.Errorf("the store has %v", store)
	}
	next := &Life{kept: map[string]int{States: store[States]}}
	must(t, next.readStates())
	got := &part{name: "a", version: 1}
	if must(t, next.Load(got)); string(got.bytes) != "state" || !next.Adopts() {
		t.Errorf("the next life has %q", got.bytes)
	}
	must(t, errors.Join(os.NewFile(uintptr(store["table"]), "").Close(), f.Close()))
}

// What the daemon before keeps and forgets while the next one starts is not lost.
func TestTheNextDaemonCatchesUp(t *testing.T) {
	ours, theirs, err := pair()
	if err != nil {
		t.Fatal(err)
	}
	open := func() int {
		f, err := NewMemory("test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return dup(t, int(f.Fd()))
	}
	k := &keeper{log: io.Discard, news: -1, store: Copy{"old": open(), "new": open(), "newer": open()}}
	next := &daemon{socket: ours}
	l := &Life{kind: ByKeeper, socket: theirs, orphan: orphan{daemon: -1, news: -1}, kept: map[string]int{"old": open(), "gone": open(), "newer": open()}}
	var none *daemon
	none.misses("nobody starts")
	for _, name := range []string{"gone", "new", "newer", "gone twice"} {
		next.misses(name)
	}
	k.catchUp(next)
	if err := send(ours, say("ADOPT=upgrade", "DIED=7")); err != nil {
		t.Fatal(err)
	}
	death, err := l.Prepared(t.Context(), func() error { return nil })
	if err != nil || death.How != "upgrade" || death.At != 7 {
		t.Errorf("%+v, %v", death, err)
	}
	if got := l.Names(); !slices.Equal(got, []string{"new", "newer", "old"}) {
		t.Errorf("it has %q", got)
	}
	for _, name := range []string{"new", "newer"} {
		var want, got unix.Stat_t
		if err := errors.Join(unix.Fstat(k.store[name], &want), unix.Fstat(l.kept[name], &got)); err != nil || want.Ino != got.Ino {
			t.Errorf("%s is another file: %v", name, err)
		}
	}
	for _, fds := range []map[string]int{k.store, l.kept, {"a": ours, "b": theirs}} {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
}

func dup(t *testing.T, fd int) int {
	t.Helper()
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return other
}
