package checkpoints

import (
	"testing"

	"github.com/hbmfs/hbmfs/tests/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }
