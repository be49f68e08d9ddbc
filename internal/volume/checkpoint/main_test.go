package checkpoint

import (
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox/leaks"
	"github.com/hbmfs/hbmfs/tests/blackbox/powerloss"
)

func TestMain(m *testing.M) {
	powerloss.ServeChild()
	publishingChild()
	leaks.Main(m)
}
