package lies_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hbmfs/hbmfs/cache/origintest"
	"github.com/hbmfs/hbmfs/tests/blackbox"
	"github.com/hbmfs/hbmfs/tests/suites/lies/liar"
)

// stalledSite is a server of healthy objects and of some that stall once they are looked at after the mount has recognized formats.
type stalledSite struct {
	*liar.Liar
	stalls atomic.Bool
	asked  atomic.Int64 // of stalled objects
}

func newStalledSite(t testing.TB, stalled, healthy int, drips bool) *stalledSite {
	files := map[string][]byte{}
	for i := range stalled {
		files[fmt.Sprintf("stalled-%03d", i)] = origintest.Data(256<<10, byte(i))
	}
	for i := range healthy {
		files[fmt.Sprintf("healthy-%03d", i)] = origintest.Data(256<<10, byte(i))
	}
	s := &stalledSite{}
	s.Liar = liar.S3(t, files, func(x *liar.Exchange) bool {
		if !s.stalls.Load() || !strings.HasPrefix(x.Name, "stalled") {
			return false
		}
		s.asked.Add(1)
		if !drips {
			<-x.R.Context().Done()
			return true
		}
		x.Headers("Content-Range", x.Truth(), "Content-Length", fmt.Sprint(x.To-x.From), "ETag", x.Tag)
		x.W.WriteHeader(206)
		x.Forever("x", time.Second)
		return true
	}, nil)
	return s
}

// readers read all stalled objects of a mount until end.
func (s *stalledSite) readers(m *blackbox.Mount) (read *atomic.Int64, end func()) {
	read = &atomic.Int64{}
	var wg sync.WaitGroup
	for name := range s.Files {
		if strings.HasPrefix(name, "stalled") {
			wg.Go(func() {
				if _, err := os.ReadFile(m.Path(name)); err == nil {
					read.Add(1)
				}
			})
		}
	}
	return read, func() {
		s.stalls.Store(false)
		s.CloseClientConnections()
		wg.Wait()
	}
}

// TestHealthyBesideStalled reads 50 healthy objects beside a hundred that stall. No stalled one is read before the last healthy one is.
func TestHealthyBesideStalled(t *testing.T) {
	blackbox.NeedFUSE(t)
	for _, cached := range []bool{false, true} {
		t.Run(fmt.Sprintf("cached %v", cached), func(t *testing.T) {
			s := newStalledSite(t, 100, 50, false)
			var flags []string
			if cached {
				flags = []string{"--cache-dir", suite.NewDir(t)}
			}
			m := mount(t, s.Source(), "", flags...)
			if !blackbox.Within(patience, func() bool { return !m.Status(t).Indexing }) {
				t.Fatal("the formats are not recognized")
			}
			s.stalls.Store(true)
			read, end := s.readers(m.Mount)
			defer end()
			if !blackbox.Within(patience, func() bool { return s.asked.Load() >= 16 }) {
				t.Fatal("the stalled objects are not read")
			}
			for i := range 50 {
				name := fmt.Sprintf("healthy-%03d", i)
				if err := liar.ReadThrough(m.Path(name), s.Files[name]); err != nil {
					t.Error(err)
				}
			}
			if n := read.Load(); n > 0 {
				t.Errorf("%d objects were read that stall", n)
			}
		})
	}
}

// BenchmarkHealthyBesideStalled prints how long reads of healthy objects take beside stalled ones, and without.
func BenchmarkHealthyBesideStalled(b *testing.B) {
	blackbox.NeedFUSE(b)
	for _, cached := range []bool{false, true} {
		for _, drips := range []bool{false, true} {
			for _, stalled := range []int{8, 20, 100} {
				b.Run(fmt.Sprintf("stalled=%d/drips=%v/cached=%v", stalled, drips, cached), func(b *testing.B) {
					const healthy = 600
					s := newStalledSite(b, stalled, healthy, drips)
					flags := []string{"--no-keeper", "--log-file", suite.NewDir(b) + "/log"}
					if cached {
						flags = append(flags, "--cache-dir", suite.NewDir(b))
					}
					m, err := suite.Mount(b.Context(), s.Source(), suite.NewDir(b), flags...)
					must(b, err)
					defer func() { must(b, m.Close()) }()
					time.Sleep(2 * time.Second) // formats are recognized
					next := 0
					one := func() time.Duration {
						name := fmt.Sprintf("healthy-%03d", next)
						next++
						began := time.Now()
						must(b, liar.ReadThrough(m.Path(name), s.Files[name]))
						return time.Since(began)
					}
					var normal, early, late []time.Duration
					for range 100 {
						normal = append(normal, one())
						time.Sleep(20 * time.Millisecond) // as below
					}
					s.stalls.Store(true)
					_, end := s.readers(m)
					for began := time.Now(); next < healthy && time.Since(began) < 15*time.Second; time.Sleep(20 * time.Millisecond) {
						if time.Since(began) < 5*time.Second {
							early = append(early, one())
						} else {
							late = append(late, one())
						}
					}
					end()
					at := func(d []time.Duration, q float64) float64 {
						slices.Sort(d)
						return d[int(q*float64(len(d)-1))].Seconds() * 1000
					}
					b.ReportMetric(at(normal, 0.5), "ms-normal")
					b.ReportMetric(at(normal, 0.99), "ms-normal-p99")
					b.ReportMetric(at(early, 1), "ms-first-5s-max")
					b.ReportMetric(at(late, 0.5), "ms-later")
					b.ReportMetric(at(late, 0.99), "ms-later-p99")
					b.ReportMetric(at(late, 0.5)/at(normal, 0.5), "later/normal")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
	}
}
