package dataset

import (
	"reflect"
	"testing"

	"github.com/hbmfs/hbmfs/layout"
)

func TestSelectionsAreHandedOver(t *testing.T) {
	given := Selections{List: []layout.Selection{
		{Name: "tokens", Documents: []int64{0, 1, 127, 128, 1 << 40}},
		{Name: "train/clean", Documents: []int64{5}},
	}}
	b, err := given.Save()
	if err != nil {
		t.Fatal(err)
	}
	var got Selections
	if err := got.Adopt(b); err != nil || !reflect.DeepEqual(got, given) {
		t.Errorf("%+v (%v), want %+v", got, err, given)
	}
	whole := 0
	for n := range b {
		if got.Adopt(b[:n]) == nil {
			whole++ // nothing, and the first selection alone
		}
	}
	if whole != 2 {
		t.Errorf("%d of %d cut sections were adopted, want 2", whole, len(b))
	}
}
