package layout

import (
	"context"
	"sync"
	"testing"
)

// TestViewsAreMadeWhileASetIsResolved makes all views of a set at once while it is resolved, as programs of a mount do. The race detector looks on.
func TestViewsAreMadeWhileASetIsResolved(t *testing.T) {
	for _, dataset := range []string{"mds-multi", "webdataset", "litdata", "arrow", "parquet", "parquet-images", "npy", "safetensors-sharded", "megatron"} {
		v := index(t, golden(t, dataset))
		var users sync.WaitGroup
		for _, s := range v.Sets {
			users.Go(func() { _ = s.Resolve(t.Context()) })
			users.Go(func() { _, _ = s.Fields(t.Context()) })
			users.Go(func() { _, _, _ = s.Tokens(), s.Samples(), s.Bad() })
		}
		for i := range v.Views {
			view := &v.Views[i]
			users.Go(func() { buildView(t.Context(), view) })
		}
		users.Wait()
	}
}

func buildView(ctx context.Context, view *View) {
	if view.File != nil {
		_, _ = view.File(ctx)
	}
	if view.Entries != nil {
		_, _ = view.Entries(ctx)
	}
}
