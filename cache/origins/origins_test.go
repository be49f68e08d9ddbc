package origins

import (
	"testing"

	"github.com/hbmfs/hbmfs/internal/text/address"
)

// TestEachSchemeOpens wants an opener for each scheme, and no other.
func TestEachSchemeOpens(t *testing.T) {
	all := openers()
	for _, s := range address.Schemes() {
		if all[s.Names[0]] == nil {
			t.Errorf("nothing opens %s", s.Form)
		}
		delete(all, s.Names[0])
	}
	for name := range all {
		t.Errorf("%s:// is no scheme of package address", name)
	}
}
