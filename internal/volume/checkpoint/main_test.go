package checkpoint

import (
	"testing"

	"github.com/hbmfs/hbmfs/tests/blackbox/powerloss"
	"github.com/hbmfs/hbmfs/tests/leaks"
)

func TestMain(m *testing.M) {
	powerloss.ServeChild()
	publishingChild()
	leaks.Main(m)
}
