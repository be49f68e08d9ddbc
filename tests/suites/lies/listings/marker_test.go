package listings_test

import (
	"strings"
	"testing"

	"github.com/hbmfs/hbmfs/tests/suites/lies/liar"
)

// TestObjectsWithoutAFile has a bucket hold objects that no mount can show: one named as a directory, and some where a mount has its own files.
func TestObjectsWithoutAFile(t *testing.T) {
	t.Parallel()
	l := liar.S3(t, map[string][]byte{
		"shard": {1}, "empty/": nil, "empty/shard": {2}, "full/": []byte("content"), "full/shard": {3}, ".hbmfs/status": []byte("{}"),
	}, nil, nil)
	said, err := suite.Command(t.Context(), "inspect", l.Source()).CombinedOutput()
	if err == nil || !strings.Contains(string(said), "full/:") || !strings.Contains(string(said), ".hbmfs/status:") || strings.Contains(string(said), "empty") {
		t.Errorf("%v, it says %s", err, said)
	}
}
