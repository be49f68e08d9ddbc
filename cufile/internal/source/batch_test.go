package source

import (
	"testing"
)

// Files that are read in their order are asked for by the dozen, others one by one.
func TestBatchAsksForWhatComesNext(t *testing.T) {
	const n = 1000
	b := &batch{opener: NewOpener("test", NewDescriptors(100, letNothing)), objects: map[uint64]*Backing{}}
	for i := range n {
		b.files = append(b.files, &batchFile{of: b, list: []Run{{Object: uint64(i + 1), Length: 1, Count: 1}}})
		b.objects[uint64(i+1)] = &Backing{FD: -1, Object: uint64(i + 1), at: int64(i)}
	}
	b.files[500] = nil // one of another kind
	use := func(i int) (asked int) {
		if b.files[i] == nil || !b.missing(b.files[i]) {
			return 0
		}
		var opened []*Backing
		for _, k := range b.ask([]*Backing{b.objects[uint64(i+1)]}) {
			opened = append(opened, b.objects[uint64(k+1)])
		}
		if err := b.opener.descriptors.offer(t.Context(), opened); err != nil {
			t.Fatal(err)
		}
		if b.missing(b.files[i]) {
			t.Fatalf("file %d is not open after it was asked for", i)
		}
		return len(opened)
	}
	messages := 0
	for i := range n {
		if use(i) > 0 {
			messages++
		}
		if b.opener.descriptors.order.Len() > 100 {
			t.Fatal("more are open than may be")
		}
	}
	if messages > n/40 {
		t.Errorf("%d messages for %d files in order, want one for about 50", messages, n)
	}
	for _, i := range []int{700, 3, 399, 88} {
		if got := use(i); got != 1 {
			t.Errorf("file %d, in no order: %d were asked for, want 1", i, got)
		}
	}
}
