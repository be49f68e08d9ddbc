package host

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hbmfs/hbmfs/internal/csi/volume"
)

// TestWhoClaimsADestination has volumes of several namespaces drain to one place. A pod cannot claim the place against volumes with other rights, and
// hears of no other namespace's pods.
func TestWhoClaimsADestination(t *testing.T) {
	keys := func(id string) map[string]string {
		return map[string]string{"AWS_ACCESS_KEY_ID": id, "AWS_SECRET_ACCESS_KEY": "secret"}
	}
	type claims struct {
		namespace string // "" for an administrator's volume, which is staged
		secrets   map[string]string
	}
	for what, c := range map[string]struct {
		first, then claims
		want        codes.Code
		says        string
	}{
		"another's anonymous one":   {claims{"b", nil}, claims{"a", keys("A")}, codes.OK, ""},
		"another's own keys":        {claims{"b", keys("B")}, claims{"a", keys("A")}, codes.OK, ""},
		"an administrator's, later": {claims{"b", nil}, claims{"", keys("A")}, codes.OK, ""},
		"an administrator's, first": {claims{"", keys("A")}, claims{"b", nil}, codes.FailedPrecondition, "volume first"},
		"the same keys":             {claims{"a", keys("A")}, claims{"a", keys("A")}, codes.FailedPrecondition, "pod a/first"},
		"anonymous in two":          {claims{"b", nil}, claims{"a", nil}, codes.FailedPrecondition, "a pod has"},
	} {
		t.Run(what, func(t *testing.T) {
			h, err := New(t.Context(), Options{StateDir: t.TempDir()})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = h.Close() }()
			claim := func(id string, c claims) error {
				r := volume.Request{ID: id, Secrets: c.secrets, Staging: c.namespace == "", Attributes: map[string]string{
					"checkpoints": "true", "source": "/ckpt/" + id, "drain": "s3://bucket/run-1", volume.PodNamespace: c.namespace,
				}}
				if c.secrets == nil {
					r.Attributes["authentication"] = "anonymous"
				}
				if c.namespace != "" {
					r.Attributes["csi.storage.k8s.io/ephemeral"] = "true"
				}
				w, err := volume.Parse(r)
				if err != nil {
					t.Fatal(err)
				}
				_, err = h.claim(w, nil, use{namespace: c.namespace, add: func(r *record) {
					if c.namespace == "" {
						r.stage(id, "/staging")
						return
					}
					r.publish("/pods/"+id, pod{VolumeID: id, Namespace: c.namespace, Name: id, Identity: w.Identity})
				}})
				return err
			}
			if err := claim("first", c.first); err != nil {
				t.Fatal(err)
			}
			if err := claim("then", c.then); status.Code(err) != c.want || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("%v, want %v that says %q", err, c.want, c.says)
			}
		})
	}
}
