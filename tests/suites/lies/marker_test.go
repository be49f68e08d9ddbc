package lies_test

import (
	"strings"
	"testing"
)

// TestObjectsWithoutAFile has a bucket hold objects that no mount can show: one named as a directory, and some where a mount has its own files.
func TestObjectsWithoutAFile(t *testing.T) {
	t.Parallel()
	l := newLiar(t, true, map[string][]byte{
		"shard": {1}, "empty/": nil, "empty/shard": {2}, "full/": []byte("content"), "full/shard": {3}, ".hbmfs/status": []byte("{}"),
	}, nil, nil)
	said, err := suite.Command(t.Context(), "inspect", l.source()).CombinedOutput()
	if err == nil || !strings.Contains(string(said), "full/:") || !strings.Contains(string(said), ".hbmfs/status:") || strings.Contains(string(said), "empty") {
		t.Errorf("%v, it says %s", err, said)
	}
}
