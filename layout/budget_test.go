package layout

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/layout/safetensors"
)

var errGate = errors.New("no more is to be had")

// sparseOrigin has objects that begin with head and are zeros behind it. A read of what lies behind the first
// window waits at the gate, and then fails.
type sparseOrigin struct {
	head    []byte
	arrived chan string // the name of the object, from each reader that has come to the gate
	gate    chan struct{}
}

func (s *sparseOrigin) ReadAt(ctx context.Context, o *Object, p []byte, off int64) (int, error) {
	if off+int64(len(p)) > windowFollowing {
		s.arrived <- o.Name
		select {
		case <-s.gate:
			return 0, errGate
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	clear(p)
	if off < int64(len(s.head)) {
		copy(p, s.head[off:])
	}
	if off+int64(len(p)) > o.Size {
		return int(o.Size - off), io.EOF
	}
	return len(p), nil
}

// TestSparseHeadersShareABudget has files that claim the largest header of their format and hold none of it. The budget
// lets some of them read theirs; the others must wait until these are through.
func TestSparseHeadersShareABudget(t *testing.T) {
	const shards = 4 // are resolved at once on any machine
	message := arrowFixture(t, "stream-u16")
	message = message[:8+binary.LittleEndian.Uint32(message[4:])] // the schema
	message = binary.LittleEndian.AppendUint32(message, arrowContinuation)
	for suffix, f := range map[string]struct {
		head   []byte
		header int64
		atOnce int
	}{
		"safetensors": {append(binary.LittleEndian.AppendUint64(nil, safetensors.MaxHeader), `{"a":{`...), safetensors.MaxHeader, 2},
		"arrow":       {binary.LittleEndian.AppendUint32(message, maxArrowMetadata), maxArrowMetadata, 3},
	} {
		t.Run(suffix, func(t *testing.T) {
			origin := &sparseOrigin{f.head, make(chan string, shards), make(chan struct{})}
			var objects []*Object
			for i := range shards {
				objects = append(objects, &Object{Name: fmt.Sprintf("%d.%s", i, suffix), Size: int64(len(f.head)) + f.header, Origin: origin})
			}
			v, err := Index(t.Context(), objects, Options{})
			if err != nil || len(v.Sets) != 1 {
				t.Fatalf("%d sets, %v", len(v.Sets), err)
			}
			holdHeaders(t, v, maxHeaders-int64(f.atOnce)*f.header)
			done := make(chan error, 1)
			go func() { done <- v.Sets[0].Resolve(t.Context()) }()
			deadline := time.After(time.Minute)
			come := map[string]bool{}
			for gone := range shards {
				for len(come) < min(gone+f.atOnce, shards) {
					select {
					case name := <-origin.arrived:
						come[name] = true
					case <-deadline:
						t.Fatalf("%d shards have begun to read their headers, %d should", len(come), gone+f.atOnce)
					}
				}
				if more := len(origin.arrived); more > 0 {
					t.Errorf("%d shards are done, and %d read their headers: at most %d may", gone, len(come)+more-gone, f.atOnce)
				}
				if len(come)-gone == f.atOnce && v.headers.left.TryAcquire(1) {
					t.Fatalf("%d shards read their headers without a share of the budget", f.atOnce)
				}
				origin.gate <- struct{}{}
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			for _, h := range v.Sets[0].Shards {
				if h.Bad == "" {
					t.Errorf("%s is not bad", h.Name)
				}
			}
			if !v.headers.left.TryAcquire(f.header * int64(f.atOnce)) {
				t.Error("not all of the budget was given back")
			}
		})
	}
}

// TestRowGroupsShareABudget has room for the row groups of all columns, or for one less.
func TestRowGroupsShareABudget(t *testing.T) {
	const columns = 16 // of one row group, that are shown: 8 of each file
	for _, room := range []int64{columns, columns - 1} {
		v := index(t, files{"a.parquet": parquetFixture(t, "plain"), "b.parquet": parquetFixture(t, "plain")})
		if err := v.places.take(maxPlaces - room); err != nil {
			t.Fatal(err)
		}
		fields, err := v.Sets[0].Fields(t.Context())
		if fits := room == columns; (err == nil) != fits || fits && len(fields) < columns/2 || !fits && !strings.Contains(err.Error(), "write larger row groups") {
			t.Errorf("room for %d: %d fields, %v", room, len(fields), err)
		}
		ragged := int64(0)
		for _, f := range fields {
			if f.Kind == "ragged" {
				ragged++
			}
		}
		if kept := v.places.kept.Load() - maxPlaces + room; err == nil && kept != 2*ragged { // of others the runs in the files are enough
			t.Errorf("%d places are kept, for %d columns of values of different length", kept, ragged)
		}
		if err != nil && v.places.kept.Load() != maxPlaces-room {
			t.Errorf("%d places stay taken", v.places.kept.Load()-maxPlaces+room)
		}
	}
}

// holdHeaders takes a part of a volume's budget for the rest of the test.
func holdHeaders(t *testing.T, v *Volume, n int64) {
	t.Helper()
	if _, err := v.headers.take(t.Context(), n); err != nil {
		t.Fatal(err)
	}
}
