// What page.js uses of the two libraries: ECharts for two dimensions, vis-graph3d for the surface.
import { init, use } from 'echarts/core';
import { BarChart, CustomChart, LineChart } from 'echarts/charts';
import { GridComponent, LegendPlainComponent, TooltipComponent } from 'echarts/components';
import { SVGRenderer } from 'echarts/renderers';
import { Graph3d } from 'vis-graph3d/esnext';

use([BarChart, CustomChart, LineChart, GridComponent, LegendPlainComponent, TooltipComponent, SVGRenderer]);
export { init, Graph3d };
