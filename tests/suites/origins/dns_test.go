package origins_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache"
	"github.com/hbmfs/hbmfs/cache/fetch"
	"github.com/hbmfs/hbmfs/cache/httporigin"
	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/cache/s3origin"
	"github.com/hbmfs/hbmfs/layout"
	"github.com/hbmfs/hbmfs/tests/suites/origins/sitetest"
)

// names is a name server. It knows every name as this machine, but those that it was told to fail for.
type names struct {
	mu    sync.Mutex
	fails map[string]nameFault // by the first label
}

type nameFault string

const (
	noSuchName  nameFault = "no-such-name"
	serverFails nameFault = "server-fails"
	noAnswer    nameFault = "no-answer"
)

// useNames has this process ask a name server of the test, until the test ends. Nothing else may run beside it.
func useNames(t *testing.T) *names {
	t.Helper()
	n := &names{fails: map[string]nameFault{}}
	before := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go n.serve(ours) // ends when they hang up
		return theirs, nil
	}}
	t.Cleanup(func() { net.DefaultResolver = before })
	return n
}

func (n *names) fail(label string, f nameFault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fails[label] = f
}

// serve answers questions as RFC 1035 has them over a stream: each message behind its length.
func (n *names) serve(c net.Conn) {
	defer func() { _ = c.Close() }()
	for {
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		question := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, question); err != nil {
			return
		}
		answer := n.answer(question)
		if answer == nil {
			_, _ = io.Copy(io.Discard, c) // until they lose patience
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// answer makes the answer to a question, nil for none.
func (n *names) answer(q []byte) []byte {
	const header = 12
	label := q[header+1 : header+1+int(q[header])]
	end := header
	for q[end] != 0 {
		end += 1 + int(q[end])
	}
	end += 1 + 4 // the root, type and class
	n.mu.Lock()
	f := n.fails[string(label)]
	n.mu.Unlock()
	code, isA := byte(0), binary.BigEndian.Uint16(q[end-4:]) == 1
	switch f {
	case noAnswer:
		return nil
	case serverFails:
		code = 2
	case noSuchName:
		code = 3
	}
	// Flags: an answer, with recursion. Counts: one question, one answer or none.
	a := append([]byte{q[0], q[1], 0x81, 0x80 | code, 0, 1, 0, 0, 0, 0, 0, 0}, q[header:end]...)
	if code == 0 && isA {
		a[7] = 1
		a = append(a, 0xc0, header, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1) // the question's name: A, IN, TTL 0
	}
	return a
}

// openOf opens the origin of a source.
func openOf(t *testing.T, source string, opt fetch.Options) origintest.Subject {
	t.Helper()
	if !strings.HasPrefix(source, "s3:") {
		o, err := httporigin.Open(source, opt)
		must(t, err)
		return o
	}
	s, err := s3origin.Parse(source)
	must(t, err)
	o, err := s3origin.Open(s, opt)
	must(t, err)
	return o
}

// TestNamesAreGone has the names of servers not resolve any more, in all ways, between the listing and a read, and at the
// listing. Nothing is taken for gone or changed, all ends with patience, and goes on when the names are back.
func TestNamesAreGone(t *testing.T) {
	n := useNames(t)
	for _, f := range []nameFault{noSuchName, serverFails, noAnswer} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			servers.OnEvery(t, func(t *testing.T, s *sitetest.Site) {
				label := string(f) + "-s3"
				if s.Indexed {
					label = string(f) + "-web"
				}
				s.PutAll(t, map[string][]byte{"shard": []byte("data")})
				source := strings.Replace(s.Source, "127.0.0.1", label+".test", 1)
				soon := fetch.Options{Patience: time.Second / 2, Stall: patience}
				if f == noAnswer {
					soon.Stall = 0 // that of so short a patience
				}
				patient, hasty := openOf(t, source, fetch.Options{}), openOf(t, source, soon)
				defer closeOrigin(t, patient)
				defer closeOrigin(t, hasty)
				l, err := patient.List(t.Context())
				must(t, err)
				shard := l.Objects[slices.IndexFunc(l.Objects, func(o *layout.Object) bool { return o.Name == "shard" })]
				n.fail(label, f)
				unreachable := func(what string, err error) {
					t.Helper()
					if !errors.Is(err, fetch.ErrUnreachable) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, cache.ErrChanged) {
						t.Errorf("%s: %v, want ErrUnreachable", what, err)
					}
					if f == noSuchName && (err == nil || !strings.Contains(err.Error(), "lookup "+label)) {
						t.Errorf("%s: %v does not name what is not found", what, err)
					}
				}
				_, err = hasty.ReadAt(t.Context(), shard, make([]byte, 4), 0)
				unreachable("read", err)
				_, err = hasty.List(t.Context())
				unreachable("list", err)
				n.fail(label, "")
				buf := make([]byte, 4)
				if _, err := patient.ReadAt(t.Context(), shard, buf, 0); err != nil || string(buf) != "data" {
					t.Errorf("the name is back: %q, %v", buf, err)
				}
			})
		})
	}
}
