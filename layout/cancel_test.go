package layout

import (
	"context"
	"errors"
	"testing"
)

// endingOrigin ends the context of whoever reads it.
type endingOrigin struct{ end context.CancelFunc }

func (e endingOrigin) ReadAt(ctx context.Context, _ *Object, _ []byte, _ int64) (int, error) {
	e.end()
	return 0, ctx.Err()
}

// Recognition that is interrupted at its last object is no result: the dataset would have no views from then on.
func TestIndexThatIsInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	o := &Object{Name: "shard.bin", Size: 1 << 20, Origin: endingOrigin{cancel}}
	if v, err := Index(ctx, []*Object{o}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", v, err)
	}
}
