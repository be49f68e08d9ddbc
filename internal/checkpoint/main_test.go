package checkpoint

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/hbmfs/hbmfs/tests/blackbox/powerloss"
)

func TestMain(m *testing.M) {
	powerloss.ServeChild()
	publishingChild()
	if code := m.Run(); code != 0 {
		os.Exit(code)
	}
	if err := goleak.Find(); err != nil {
		panic(err)
	}
}
