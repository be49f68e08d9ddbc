package drain

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/internal/volume/checkpoint"
)

// TestDamagedAtTheDestination deletes and cuts objects of checkpoints that are remote: they are listed as damaged, and the next drain mends them.
// One that cannot be mended has failed, and stays.
func TestDamagedAtTheDestination(t *testing.T) {
	sizes := map[string]int{"small": 1000, "a/b/more": checkpoint.Chunk + 1, "big": 8*mib + 17} // which has two parts
	for what, damage := range map[string]func(objects map[string]*object, key string){
		"deleted": func(objects map[string]*object, key string) { delete(objects, key) },
		"cut": func(objects map[string]*object, key string) {
			objects[key] = &object{data: []byte("0"), etag: "another", crc: "AAAAAA=="}
		},
	} {
		for _, file := range []string{"small", "big", "a/b/more", checkpoint.ManifestName} {
			if file == checkpoint.ManifestName && what == "cut" {
				continue // which is another checkpoint's: see TestBadPlaces
			}
			t.Run(what+" "+file, func(t *testing.T) {
				s, dir := newStore(t), t.TempDir()
				opt := fast()
				publish(t, dir, "step-1", checkpoint.Part{Of: 1}, sizes)
				publish(t, dir, "step-2", checkpoint.Part{Of: 1}, map[string]int{"small": 1000})
				once(t, dir, s.url("run"), opt)
				s.set(func() { damage(s.objects, "run/step-1/"+file) })
				listed := func() checkpoint.Entry {
					all, err := List(t.Context(), s.url("run"), time.Minute)
					must(t, err)
					if len(all) != 2 || all[1].State != checkpoint.Complete {
						t.Errorf("listed are %v", all)
					}
					return all[0]
				}
				if e := listed(); e.State == checkpoint.Complete || e.State == checkpoint.Damaged && !strings.Contains(e.Why, file) {
					t.Errorf("it is listed as %+v", e)
				}
				opt.Keep = 1
				s.set(func() {
					s.before = func(op, _ string, w http.ResponseWriter, _ *http.Request) (bool, func(http.ResponseWriter)) {
						if op == "put" || op == "begin" {
							fail(w, http.StatusForbidden, "AccessDenied")
						}
						return op == "put" || op == "begin", nil
					}
				})
				if got := once(t, dir, s.url("run"), opt); !strings.HasPrefix(got["step-1"], "failed: ") || len(got) != 2 {
					t.Errorf("while nothing can be stored: %v", got)
				}
				s.set(func() { s.before = nil })
				opt.Keep = 0
				d := open(t, dir, s.url("run"), opt)
				must(t, d.Once(t.Context()))
				if got := states(d); got["step-1"] != Remote || file != checkpoint.ManifestName && d.Status().Mended != 1 {
					t.Errorf("mended: %v, %d", got, d.Status().Mended)
				}
				must(t, d.Close())
				if e := listed(); e.State != checkpoint.Complete {
					t.Errorf("mended, it is listed as %+v", e)
				}
				compare(t, s, "run/", dir, "step-1", sizes)
				opt.Keep = 1
				if got := once(t, dir, s.url("run"), opt); len(got) != 1 {
					t.Errorf("beyond --keep: %v", got)
				}
			})
		}
	}
}
