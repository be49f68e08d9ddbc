package layout

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hbmfs/hbmfs/layout/parquet"
)

// tokensThere reports whether the token view of a volume can be shown.
func tokensThere(t *testing.T, v *Volume) bool {
	t.Helper()
	i := slices.IndexFunc(v.Views, func(v View) bool { return v.Path == "tokens.bin" })
	_, err := v.Views[i].File(t.Context())
	return err == nil
}

// One broken column is missing: the others and the tokens stay.
func TestParquetFieldsBesideABrokenOne(t *testing.T) {
	data := bytes.Clone(parquetFixture(t, "plain"))
	f, err := parquet.Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	at := f.Groups[0].Start // of the first column, id
	copy(data[at:], bytes.Repeat([]byte{0xff}, 8))
	v := index(t, files{"a.parquet": data})
	for range 2 {
		fields, err := v.Sets[0].Fields(t.Context())
		if err != nil || len(fields) != 9 || len(v.Problems()) != 1 {
			t.Fatalf("%+v, problems %v: %v", fields, v.Problems(), err)
		}
		for _, f := range fields {
			if broken := strings.Contains(f.Missing, "is broken"); broken != (f.Name == "id") {
				t.Errorf("%+v", f)
			}
		}
	}
	if !tokensThere(t, v) || v.Sets[0].Bad() != nil {
		t.Errorf("the tokens went with another column: %v", v.Sets[0].Bad())
	}
}

// outage is an origin that fails for a while.
type outage struct {
	inline
	fails atomic.Bool
	from  int64 // bytes from there on can be read
}

var errOutage = errors.New("503 Slow Down")

func (o *outage) ReadAt(ctx context.Context, of *Object, p []byte, off int64) (int, error) {
	if o.fails.Load() && off < o.from {
		return 0, errOutage
	}
	return o.inline.ReadAt(ctx, of, p, off)
}

// An origin that fails while the fields are looked for fails that call alone.
func TestParquetFieldsAfterAnOutage(t *testing.T) {
	data := parquetFixture(t, "plain")
	for from := range map[int64]bool{int64(len(data)): true, int64(len(data)) / 4: true} {
		origin := &outage{inline: data, from: from}
		v, err := Index(t.Context(), []*Object{{Name: "a.parquet", Size: int64(len(data)), Origin: origin}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		origin.fails.Store(true)
		if _, err := v.Sets[0].Fields(t.Context()); !errors.Is(err, errOutage) || len(v.Problems()) > 0 {
			t.Errorf("%v, problems %v", err, v.Problems())
		}
		origin.fails.Store(false)
		if fields, err := v.Sets[0].Fields(t.Context()); err != nil || len(fields) != 9 || !tokensThere(t, v) {
			t.Errorf("after the outage %d fields: %v", len(fields), err)
		}
	}
}
